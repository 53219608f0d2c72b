//! The body of an upload to an S3-compatible store: parts that arrive while it is sent, of a length that was declared
//! before. It ends with an error if they end early, so that the store keeps nothing of it.
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use turnway_core::limits;

/// A body with a declared length, or none.
#[derive(Debug)]
pub(super) struct UploadBody {
    /// `None` for a request without a body.
    parts: Option<mpsc::Receiver<Bytes>>,
    /// Bytes that are still to come.
    left: u64,
}

// === impl UploadBody ===

impl UploadBody {
    /// Returns a body of this length, and the sender of its parts.
    pub(super) fn of_length(bytes: u64) -> (mpsc::Sender<Bytes>, Self) {
        let (sender, parts) = mpsc::channel(limits::S3_WAITING_PARTS_MAX);
        (sender, Self { parts: Some(parts), left: bytes })
    }

    /// Returns the body of a request that has none.
    pub(super) fn none() -> Self {
        Self { parts: None, left: 0 }
    }

    /// Returns the bytes to come; none for a request without a body.
    pub(super) fn length(&self) -> Option<u64> {
        self.parts.as_ref().map(|_| self.left)
    }
}

impl Body for UploadBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Some(parts) = &mut self.parts else { return Poll::Ready(None) };
        let Poll::Ready(part) = parts.poll_recv(context) else { return Poll::Pending };
        Poll::Ready(match part {
            Some(part) => match self.left.checked_sub(part.len() as u64) {
                Some(left) => {
                    self.left = left;
                    Some(Ok(Frame::data(part)))
                }
                None => Some(Err(io::Error::other("more bytes than declared"))),
            },
            None if self.left > 0 => Some(Err(io::ErrorKind::UnexpectedEof.into())),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    /// Covers: PR-24.
    #[tokio::test]
    async fn body_of_another_length_ends_with_an_error() {
        for (length, is_whole) in [(6, true), (7, false), (5, false)] {
            let (sender, body) = UploadBody::of_length(length);
            let send = async {
                for part in ["abc", "def"] {
                    let _ = sender.send(Bytes::from_static(part.as_bytes())).await;
                }
                drop(sender);
            };
            let (collected, ()) = tokio::join!(body.collect(), send);
            assert_eq!(collected.is_ok(), is_whole, "{length}");
        }
        assert!(UploadBody::none().is_end_stream());
    }
}
