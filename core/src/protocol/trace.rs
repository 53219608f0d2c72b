//! W3C Trace Context, as far as the gateway reads it: the gateway passes a context on, and starts one where there is
//! none.

/// Returns whether a text is a `traceparent`: `00-<32 hex>-<16 hex>-<2 hex>`, lower case, neither id all zero (W3C
/// Trace Context §3.2). An invalid text starts a new trace; it is no reason to refuse a request.
pub fn is_traceparent(text: &str) -> bool {
    let hex = |part: &str| part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let parts: Vec<&str> = text.split('-').collect();
    let [version, trace, span, flags] = parts[..] else { return false };
    let sized = trace.len() == 32 && span.len() == 16 && flags.len() == 2;
    let named = [trace, span].iter().all(|id| id.bytes().any(|b| b != b'0'));
    version == "00" && sized && named && [trace, span, flags].into_iter().all(hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: MP-G1, ST-42.
    #[test]
    fn only_valid_traceparents_are_accepted() {
        assert!(is_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
        for bad in [
            "",
            "00",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0\n",
            "00-4bf92f3577b34da6a3ce929d0e0e473é-00f067aa0ba902b7-01",
        ] {
            assert!(!is_traceparent(bad), "{bad:?}");
        }
    }
}
