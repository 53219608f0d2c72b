//! Limits the size of an agent's SSE response: one limit for each event, one for the whole body. The SSE parser has no
//! limits of its own and must only get bytes that passed this filter. Used by `sse`.
use bytes::Bytes;
use futures_util::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use turnway_core::limits;
use turnway_core::planted::{Planted, planted};

/// A body stream that counts its bytes since the last blank line, which ends an SSE event.
pub(super) struct BodyBudget<S> {
    body: S,
    /// Bytes of the whole body so far.
    total: usize,
    /// Bytes since the last blank line.
    event: usize,
    /// True if the current line has no byte yet.
    is_line_empty: bool,
    /// True if the last byte was CR: an LF after it ends no further line.
    is_after_cr: bool,
    is_exhausted: bool,
    bytes_arrived: Arc<AtomicBool>,
}

/// A reason why a body cannot be read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BodyFault {
    /// The connection was lost.
    #[error("lost")]
    Lost,
    /// One event or the whole body exceeds its limit.
    #[error("too large")]
    TooLarge,
}

impl<S> BodyBudget<S> {
    pub(super) fn new(body: S) -> Self {
        let bytes_arrived = Arc::default();
        Self { body, total: 0, event: 0, is_line_empty: true, is_after_cr: false, is_exhausted: false, bytes_arrived }
    }

    /// Returns a flag that is set whenever bytes arrive, including bytes of an incomplete event.
    pub(super) fn bytes_arrived(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.bytes_arrived)
    }

    /// Counts a chunk. If a limit is exceeded, returns how many of its bytes belong to complete events within the
    /// limit.
    fn count(&mut self, chunk: &[u8]) -> Result<(), usize> {
        let mut whole = 0;
        let mut at = 0;
        while at < chunk.len() {
            let rest = &chunk[at..];
            let line = rest.iter().position(|b| matches!(b, b'\n' | b'\r')).unwrap_or(rest.len());
            if line > 0 {
                self.is_line_empty = false;
                self.is_after_cr = false;
                self.event = self.event.saturating_add(line);
                at += line;
            }
            let most = limits::AGENT_EVENT_BYTES_MAX * if planted(Planted::AgentEventDoubled) { 2 } else { 1 };
            if self.event > most {
                return Err(whole);
            }
            let Some(end) = chunk.get(at) else { break };
            at += 1;
            self.event += 1;
            let completes_crlf = *end == b'\n' && self.is_after_cr;
            self.is_after_cr = *end == b'\r';
            if completes_crlf {
                // The line ended with its CR; if the CR ended an event, the LF still belongs to that event.
                if self.event == 1 {
                    self.event = 0;
                    whole = at;
                }
                continue;
            }
            if self.is_line_empty {
                self.event = 0;
                whole = at;
            }
            self.is_line_empty = true;
        }
        Ok(())
    }
}

impl<S, E> Stream for BodyBudget<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
{
    type Item = Result<Bytes, BodyFault>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_exhausted {
            return Poll::Ready(Some(Err(BodyFault::TooLarge)));
        }
        let mut chunk = match ready!(Pin::new(&mut self.body).poll_next(cx)) {
            Some(Ok(chunk)) => chunk,
            Some(Err(_)) => return Poll::Ready(Some(Err(BodyFault::Lost))),
            None => return Poll::Ready(None),
        };
        if !chunk.is_empty() {
            self.bytes_arrived.store(true, Ordering::Relaxed);
        }
        self.total = self.total.saturating_add(chunk.len());
        if self.total > limits::AGENT_BODY_BYTES_MAX && !planted(Planted::AgentBodyUnbounded) {
            return Poll::Ready(Some(Err(BodyFault::TooLarge)));
        }
        match self.count(&chunk) {
            Ok(()) => Poll::Ready(Some(Ok(chunk))),
            Err(0) => Poll::Ready(Some(Err(BodyFault::TooLarge))),
            Err(whole) => {
                // Complete events before the one that is too large still count.
                self.is_exhausted = true;
                chunk.truncate(whole);
                Poll::Ready(Some(Ok(chunk)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;
    use std::convert::Infallible;

    /// Feeds the chunks through the filter; returns the number of bytes that passed, and the error at the end.
    fn pass(chunks: Vec<Vec<u8>>) -> (usize, Option<BodyFault>) {
        let body = futures_util::stream::iter(chunks.into_iter().map(|chunk| Ok::<_, Infallible>(Bytes::from(chunk))));
        let mut budget = BodyBudget::new(body);
        let mut passed = 0;
        let mut cx = Context::from_waker(std::task::Waker::noop());
        loop {
            match budget.poll_next_unpin(&mut cx) {
                Poll::Ready(Some(Ok(chunk))) => passed += chunk.len(),
                Poll::Ready(Some(Err(fault))) => return (passed, Some(fault)),
                Poll::Ready(None) => return (passed, None),
                Poll::Pending => panic!("an iterator is never pending"),
            }
        }
    }

    /// Covers: S-48.
    #[test]
    fn event_size_limit_holds_for_any_chunking_and_line_ending() {
        let max = limits::AGENT_EVENT_BYTES_MAX;
        for end in ["\n\n", "\r\r", "\r\n\r\n", "\n\r\n", "\r\n\n"] {
            let mut fits = vec![b'x'; max - end.len()];
            fits.extend_from_slice(end.as_bytes());
            let twice = fits.repeat(2);
            for cut in [1, 7, 1000, twice.len()] {
                let chunks = twice.chunks(cut).map(<[u8]>::to_vec).collect();
                assert_eq!(pass(chunks), (twice.len(), None), "{end:?} cut at {cut}");
            }
            let mut over = fits.clone();
            over.extend_from_slice(&vec![b'x'; max + 1]);
            assert_eq!(pass(vec![over]), (fits.len(), Some(BodyFault::TooLarge)), "{end:?}");
        }
        // Only a blank line ends an event.
        let lines = b"data: x\r\n".repeat(max / 9 + 1);
        assert_eq!(pass(vec![lines]).1, Some(BodyFault::TooLarge));
    }

    /// Covers: S-48.
    #[test]
    fn body_over_the_size_limit_is_refused() {
        let chunk = b": ping\n\n".repeat(1024);
        let chunks = limits::AGENT_BODY_BYTES_MAX / chunk.len();
        assert_eq!(pass(vec![chunk.clone(); chunks]).1, None);
        assert_eq!(pass(vec![chunk; chunks + 1]).1, Some(BodyFault::TooLarge));
    }
}
