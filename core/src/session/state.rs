//! A session's state: what its facts say, and nothing else.
