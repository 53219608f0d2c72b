//! Token counts of an answer, read leniently and never invented.

/// Tokens that an upstream said a call used. A field is absent if it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// All tokens of the input, with those read from and written to a cache.
    pub input: Option<u64>,
    /// Tokens of the input that were read from a cache.
    pub cached_input: Option<u64>,
    /// Tokens of the input that were written to a cache.
    pub cache_write: Option<u64>,
    /// All tokens of the output, with those of the reasoning.
    pub output: Option<u64>,
    /// Tokens of the output that were reasoning.
    pub reasoning: Option<u64>,
}
