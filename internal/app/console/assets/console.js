// Makes the console's pages live and gives them keys. Pages work without it.
(() => {
  'use strict';
  const root = document.documentElement;
  const main = document.querySelector('[data-live]');
  const dot = document.querySelector('[data-live-dot]');

  function say(state, text) {
    if (!dot) return;
    dot.hidden = false;
    dot.dataset.state = state; // live, lost or paused
    dot.textContent = text;
  }

  // banner shows one line above the page, with a link that reloads it.
  function banner(text) {
    if (document.querySelector('[data-banner]')) return;
    const line = document.createElement('p');
    line.className = 'banner';
    line.dataset.banner = '';
    line.setAttribute('role', 'status');
    const again = document.createElement('a');
    again.href = location.href;
    again.textContent = 'reload';
    line.append(text + ': ', again);
    document.body.prepend(line);
  }

  // busy says whether a new fragment would take something from under the reader's hands.
  function busy() {
    const focus = document.activeElement;
    const selection = getSelection();
    return main.contains(focus) && focus.matches('input, select, textarea') ||
      selection && !selection.isCollapsed && main.contains(selection.anchorNode) ||
      main.querySelector('dialog[open], details[open], input:checked') !== null;
  }

  if (main && window.htmx) {
    const prefix = root.dataset.prefix || '';
    const path = location.pathname.slice(prefix.length) + location.search;
    main.setAttribute('hx-sse:connect', prefix + '/live?of=' + encodeURIComponent(path));
    main.setAttribute('hx-swap', 'innerMorph');
    main.setAttribute('hx-trigger', 'console-visible');
    let waiting = false;
    main.addEventListener('htmx:sse:before:message', (event) => {
      const message = event.detail.message;
      if (message.event === 'version') {
        if (root.dataset.version !== message.data) banner('There is a newer version of the console');
        say('live', 'live');
      } else if (message.event === 'lost') {
        const lost = JSON.parse(message.data);
        main.classList.add('stale');
        const since = new Date(lost.since);
        const at = since.getFullYear() > 1 ? since.toLocaleTimeString() : 'this page was opened';
        say('lost', lost.message + ' As of ' + at);
      } else if (busy()) {
        waiting = true;
        say('paused', 'paused while you select');
        event.detail.cancelled = true;
      } else {
        waiting = false;
        main.classList.remove('stale');
        say('live', 'live');
      }
    });
    main.addEventListener('htmx:sse:error', () => say('lost', 'reconnecting'));
    main.addEventListener('htmx:sse:close', () => say('lost', 'not live: reload the page'));
    // The stream sends a fragment only when it has changed: ask for the one that was held back.
    const release = () => {
      if (waiting && !busy() && !document.hidden) {
        waiting = false;
        htmx.ajax('GET', location.href, {source: document.body, target: main, select: '#main', swap: 'outerMorph'});
      }
    };
    document.addEventListener('focusout', () => setTimeout(release));
    document.addEventListener('selectionchange', release);
    document.addEventListener('change', release);
    // A page that was opened in the background is watched once it is seen; htmx pauses it when it is hidden again.
    const start = () => {
      if (!document.hidden) htmx.trigger(main, 'console-visible');
    };
    document.addEventListener('DOMContentLoaded', () => setTimeout(start));
    document.addEventListener('visibilitychange', start);
  }

  // Copying works over plain HTTP too, where navigator.clipboard is missing.
  function copyOld(text) {
    const area = document.createElement('textarea');
    area.value = text;
    area.className = 'offscreen';
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      copyOld(text);
    }
  };
  document.addEventListener('click', (event) => {
    const from = event.target.closest('[data-copy]');
    if (from) copy(from.dataset.copy).then(() => from.classList.add('copied'));
  });

  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches?.('input, select, textarea')) return;
    const to = document.querySelector('[data-key="' + CSS.escape(event.key) + '"]');
    if (!to) return;
    event.preventDefault();
    if (to.matches('input, select, textarea')) to.focus();
    else to.click();
  });

  const theme = document.querySelector('[data-theme-toggle]');
  const themes = ['', 'light', 'dark'];
  const setTheme = (name) => {
    root.dataset.theme = name;
    if (theme) theme.textContent = 'Theme: ' + (name || 'system');
  };
  setTheme(localStorage.getItem('console-theme') || '');
  if (theme) {
    theme.hidden = false;
    theme.addEventListener('click', () => {
      const next = themes[(themes.indexOf(root.dataset.theme) + 1) % themes.length];
      localStorage.setItem('console-theme', next);
      setTheme(next);
    });
  }
})();
