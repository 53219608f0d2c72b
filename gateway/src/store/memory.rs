//! `memory:` — the model itself as a store; forgets everything with the process.
