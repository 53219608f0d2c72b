//! Scripts for the session machine.
