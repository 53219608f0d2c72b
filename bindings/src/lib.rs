//! Bindings of conversations to sessions, their routes and delivery. Empty: conversations are not built yet.
