// SPDX-License-Identifier: Apache-2.0
// Fetches the page every five seconds and says how old it is; the page works
// without this file. A page that is not renewed must not look like a new one.
'use strict';

const INTERVAL_MS = 5000;
const STALE_MS = 15000;
const age = document.getElementById('age');
let renewedAt = performance.now();

function showAge() {
  const ms = performance.now() - renewedAt;
  age.classList.toggle('stale', ms >= STALE_MS);
  age.textContent = ms >= STALE_MS
    ? `No answer for ${Math.round(ms / 1000)} s: what you see is old.`
    : `Renewed ${Math.round(ms / 1000)} s ago.`;
}

async function renew() {
  const answer = await fetch('./', {
    cache: 'no-store', signal: AbortSignal.timeout(10000),
  });
  if (!answer.ok) {
    throw new Error(`status ${answer.status}`);
  }
  const html = await answer.text();
  const fresh = new DOMParser().parseFromString(html, 'text/html');
  const main = fresh.querySelector('main');
  if (!main) {
    throw new Error('no page');
  }
  document.querySelector('main').replaceWith(document.adoptNode(main));
  document.title = fresh.title;
  renewedAt = performance.now();
}

async function keepRenewing() {
  if (!document.hidden) {
    try {
      await renew();
    } catch (error) {
      console.warn('The page was not renewed:', error);
    }
  }
  setTimeout(keepRenewing, INTERVAL_MS);
}

showAge();
setInterval(showAge, 1000);
setTimeout(keepRenewing, INTERVAL_MS);
