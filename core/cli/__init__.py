"""The `isoinfer` command. Light to import: nothing here loads torch before a command needs it."""
