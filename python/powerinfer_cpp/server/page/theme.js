// Sets the colours before the first frame is drawn; settings.js changes them later.
try {
    const theme = JSON.parse(localStorage.getItem('powerinfer.settings') || '{}').theme;
    if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
} catch {
    // Storage is off or holds something else: the system's colours.
}
