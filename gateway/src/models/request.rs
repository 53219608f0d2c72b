//! One call as it is sent to upstreams, and its body in pieces: a long body is in memory once, however many upstreams are
//! asked.
use super::budget::BudgetAccount;
use crate::run_token::TokenRun;
use bytes::Bytes;
use http::HeaderMap;
use hyper::body::{Body, Frame, SizeHint};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use turnway_wire::model::{CallFormat, CallRequest};

/// A call of a model.
#[derive(Clone, Debug)]
pub struct ModelCall {
    pub format: CallFormat,
    /// The parsed parts of `body`.
    pub call: CallRequest,
    pub body: Bytes,
    /// Headers for the upstream, without its key.
    pub headers: HeaderMap,
    /// Query for the upstream, without the question mark.
    pub query: Option<&'static str>,
    /// The run that makes the call, which is then recorded in the log of its session.
    pub run: Option<TokenRun>,
    /// Accounts whose budgets the call is made under.
    pub accounts: Vec<BudgetAccount>,
}

/// A complete body in several pieces.
#[derive(Clone, Debug, Default)]
pub(super) struct PiecedBody(VecDeque<Bytes>);

// === impl PiecedBody ===

impl PiecedBody {
    pub(super) fn new(pieces: Vec<Bytes>) -> Self {
        Self(pieces.into_iter().filter(|piece| !piece.is_empty()).collect())
    }
}

impl Body for PiecedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|piece| piece.len() as u64).sum())
    }
}
