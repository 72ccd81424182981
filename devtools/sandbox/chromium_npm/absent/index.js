// Stands in for a package that is never called: sandbox/chromium.py unpacks the archives itself.
module.exports = {};
