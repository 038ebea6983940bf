"""Look-ahead: playing candidates out to a horizon, the upper bound of service, and the headroom between."""
