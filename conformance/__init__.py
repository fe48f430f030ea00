"""The exportable conformance suite: op cases and the error model that judges them. Needs no pytest."""
