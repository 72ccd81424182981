// Stands in for packages that Azurite imports and, with the options of sandbox/azurite.py, never uses.
module.exports = {};
