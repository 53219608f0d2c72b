//! Handovers in snapshots of version 8. Version 6 has some of these structs without the end of the answer.
use crate::id::{AgentId, EventId, RequestId, RunId};
use crate::private::Private;
use crate::protocol::handover::HandoverRejection;
use crate::protocol::versioned::{FormList, VersionedForm};
use crate::session::handover_state::{AnswerTail, ConfirmedHandover, Handover, HandoverEnded, Handovers, PendingJoin};
use crate::time::Millis;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The outcomes of the latest handovers.
pub(in crate::session::snapshot) type EndedHandoversVersion8<'a> = FormList<'a, HandoverEnded, HandoverEndedVersion8>;

/// The form of [`Handovers`].
#[derive(Serialize, Deserialize)]
pub(in crate::session::snapshot) struct HandoversVersion8<'a> {
    pub(in crate::session::snapshot) open: Option<HandoverVersion8<'a>>,
    pub(in crate::session::snapshot) given: Option<ConfirmedHandoverVersion8<'a>>,
    pub(in crate::session::snapshot) ended: EndedHandoversVersion8<'a>,
    pub(in crate::session::snapshot) last_request: Option<(Cow<'a, RunId>, u32)>,
    pub(in crate::session::snapshot) running_answer: Option<(Cow<'a, RunId>, AnswerTailVersion8<'a>)>,
}

/// The form of an [`AnswerTail`].
#[derive(Default, Serialize, Deserialize)]
pub(in crate::session::snapshot) struct AnswerTailVersion8<'a> {
    text: Cow<'a, str>,
    is_cut: bool,
}

/// The form of a [`Handover`].
#[derive(Serialize, Deserialize)]
pub(in crate::session::snapshot) struct HandoverVersion8<'a> {
    pub(in crate::session::snapshot) id: EventId,
    pub(in crate::session::snapshot) run_id: Cow<'a, RunId>,
    pub(in crate::session::snapshot) from: Cow<'a, AgentId>,
    pub(in crate::session::snapshot) to: Cow<'a, AgentId>,
    pub(in crate::session::snapshot) reason: Cow<'a, str>,
    pub(in crate::session::snapshot) summary: Cow<'a, str>,
    pub(in crate::session::snapshot) deadline: Millis,
    pub(in crate::session::snapshot) joining: Option<PendingJoinVersion8<'a>>,
    pub(in crate::session::snapshot) answer_tail: AnswerTailVersion8<'a>,
}

/// The form of a [`PendingJoin`].
#[derive(Serialize, Deserialize)]
pub(in crate::session::snapshot) struct PendingJoinVersion8<'a> {
    tx_id: EventId,
    request_id: Option<Cow<'a, RequestId>>,
}

/// The form of a [`ConfirmedHandover`].
#[derive(Serialize, Deserialize)]
pub(in crate::session::snapshot) struct ConfirmedHandoverVersion8<'a> {
    pub(in crate::session::snapshot) id: EventId,
    pub(in crate::session::snapshot) run_id: Cow<'a, RunId>,
    pub(in crate::session::snapshot) from: Cow<'a, AgentId>,
    pub(in crate::session::snapshot) to: Cow<'a, AgentId>,
    pub(in crate::session::snapshot) reason: Cow<'a, str>,
    pub(in crate::session::snapshot) summary: Cow<'a, str>,
    pub(in crate::session::snapshot) switched: bool,
    pub(in crate::session::snapshot) notified_run: Option<Cow<'a, RunId>>,
    pub(in crate::session::snapshot) answer_tail: AnswerTailVersion8<'a>,
}

/// The form of a [`HandoverEnded`].
#[derive(Serialize, Deserialize)]
pub(in crate::session::snapshot) struct HandoverEndedVersion8 {
    id: EventId,
    why: Option<HandoverRejectionVersion8>,
}

/// The form of a [`HandoverRejection`].
#[derive(Serialize, Deserialize)]
enum HandoverRejectionVersion8 {
    Refused,
    Expired,
    Unavailable,
    AgentLeft,
    SessionClosed,
}

impl<'a> VersionedForm<'a> for HandoversVersion8<'a> {
    type Domain = Handovers;

    fn borrow(handovers: &'a Handovers) -> Self {
        let Handovers { open, given, ended, last_request, running_answer } = handovers;
        Self {
            open: open.as_deref().map(HandoverVersion8::borrow),
            given: given.as_deref().map(ConfirmedHandoverVersion8::borrow),
            ended: FormList::Borrowed(ended),
            last_request: last_request.as_ref().map(|(run_id, times)| (Cow::Borrowed(run_id), *times)),
            running_answer: running_answer
                .as_deref()
                .map(|(run_id, tail)| (Cow::Borrowed(run_id), AnswerTailVersion8::borrow(tail))),
        }
    }

    fn into_domain(self) -> Handovers {
        let Self { open, given, ended, last_request, running_answer } = self;
        Handovers {
            open: open.map(|open| Box::new(open.into_domain())),
            given: given.map(|given| Box::new(given.into_domain())),
            ended: ended.into_domain(),
            last_request: last_request.map(|(run_id, times)| (run_id.into_owned(), times)),
            running_answer: running_answer.map(|(run_id, tail)| Box::new((run_id.into_owned(), tail.into_domain()))),
        }
    }
}

impl<'a> VersionedForm<'a> for AnswerTailVersion8<'a> {
    type Domain = AnswerTail;

    fn borrow(tail: &'a AnswerTail) -> Self {
        let AnswerTail { text, is_cut } = tail;
        Self { text: Cow::Borrowed(text.reveal()), is_cut: *is_cut }
    }

    fn into_domain(self) -> AnswerTail {
        let Self { text, is_cut } = self;
        AnswerTail { text: Private(text.into_owned()), is_cut }
    }
}

impl<'a> VersionedForm<'a> for HandoverVersion8<'a> {
    type Domain = Handover;

    fn borrow(handover: &'a Handover) -> Self {
        let Handover { id, run_id, from, to, reason, summary, deadline, joining, answer_tail } = handover;
        Self {
            id: *id,
            run_id: Cow::Borrowed(run_id),
            from: Cow::Borrowed(from),
            to: Cow::Borrowed(to),
            reason: Cow::Borrowed(reason.reveal()),
            summary: Cow::Borrowed(summary.reveal()),
            deadline: *deadline,
            joining: joining.as_ref().map(PendingJoinVersion8::borrow),
            answer_tail: AnswerTailVersion8::borrow(answer_tail),
        }
    }

    fn into_domain(self) -> Handover {
        let Self { id, run_id, from, to, reason, summary, deadline, joining, answer_tail } = self;
        Handover {
            id,
            run_id: run_id.into_owned(),
            from: from.into_owned(),
            to: to.into_owned(),
            reason: Private(reason.into_owned()),
            summary: Private(summary.into_owned()),
            deadline,
            joining: joining.map(PendingJoinVersion8::into_domain),
            answer_tail: answer_tail.into_domain(),
        }
    }
}

impl<'a> VersionedForm<'a> for PendingJoinVersion8<'a> {
    type Domain = PendingJoin;

    fn borrow(joining: &'a PendingJoin) -> Self {
        let PendingJoin { tx_id, request_id } = joining;
        Self { tx_id: *tx_id, request_id: request_id.as_ref().map(Cow::Borrowed) }
    }

    fn into_domain(self) -> PendingJoin {
        let Self { tx_id, request_id } = self;
        PendingJoin { tx_id, request_id: request_id.map(Cow::into_owned) }
    }
}

impl<'a> VersionedForm<'a> for ConfirmedHandoverVersion8<'a> {
    type Domain = ConfirmedHandover;

    fn borrow(handover: &'a ConfirmedHandover) -> Self {
        let ConfirmedHandover { id, run_id, from, to, reason, summary, switched, notified_run, answer_tail } = handover;
        Self {
            id: *id,
            run_id: Cow::Borrowed(run_id),
            from: Cow::Borrowed(from),
            to: Cow::Borrowed(to),
            reason: Cow::Borrowed(reason.reveal()),
            summary: Cow::Borrowed(summary.reveal()),
            switched: *switched,
            notified_run: notified_run.as_ref().map(Cow::Borrowed),
            answer_tail: AnswerTailVersion8::borrow(answer_tail),
        }
    }

    fn into_domain(self) -> ConfirmedHandover {
        let Self { id, run_id, from, to, reason, summary, switched, notified_run, answer_tail } = self;
        ConfirmedHandover {
            id,
            run_id: run_id.into_owned(),
            from: from.into_owned(),
            to: to.into_owned(),
            reason: Private(reason.into_owned()),
            summary: Private(summary.into_owned()),
            switched,
            notified_run: notified_run.map(Cow::into_owned),
            answer_tail: answer_tail.into_domain(),
        }
    }
}

impl VersionedForm<'_> for HandoverEndedVersion8 {
    type Domain = HandoverEnded;

    fn borrow(ended: &HandoverEnded) -> Self {
        let HandoverEnded { id, why } = ended;
        Self { id: *id, why: why.as_ref().map(HandoverRejectionVersion8::borrow) }
    }

    fn into_domain(self) -> HandoverEnded {
        let Self { id, why } = self;
        HandoverEnded { id, why: why.map(HandoverRejectionVersion8::into_domain) }
    }
}

impl VersionedForm<'_> for HandoverRejectionVersion8 {
    type Domain = HandoverRejection;

    fn borrow(why: &HandoverRejection) -> Self {
        match why {
            HandoverRejection::Refused => Self::Refused,
            HandoverRejection::Expired => Self::Expired,
            HandoverRejection::Unavailable => Self::Unavailable,
            HandoverRejection::AgentLeft => Self::AgentLeft,
            HandoverRejection::SessionClosed => Self::SessionClosed,
        }
    }

    fn into_domain(self) -> HandoverRejection {
        match self {
            Self::Refused => HandoverRejection::Refused,
            Self::Expired => HandoverRejection::Expired,
            Self::Unavailable => HandoverRejection::Unavailable,
            Self::AgentLeft => HandoverRejection::AgentLeft,
            Self::SessionClosed => HandoverRejection::SessionClosed,
        }
    }
}
