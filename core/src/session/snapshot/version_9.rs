//! Snapshots of version 9: version 8 with the deliveries to conversations. Written only for a session that has some, so
//! that a release before deliveries can read the snapshots of all other sessions.
use super::version_8::StateVersion8;
use crate::id::{DeliveryId, MessageId, RunId, Seq};
use crate::private::Private;
use crate::protocol::conversation::ConversationRef;
use crate::protocol::delivery::{DeliveryFailure, DeliveryKind, InputOrigin};
use crate::protocol::versioned::VersionedForm;
use crate::session::delivery_state::{Deliveries, DeliveryPhase, OpenDelivery, OpenOrigin, OriginEnd};
use crate::session::state::State;
use crate::time::Millis;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};

/// The version in the header of these snapshots.
pub(super) const VERSION: u8 = 9;

/// The form of a [`State`].
#[derive(Serialize, Deserialize)]
pub(super) struct StateVersion9<'a> {
    base: StateVersion8<'a>,
    deliveries: DeliveriesVersion9,
}

/// The form of [`Deliveries`].
#[derive(Serialize, Deserialize)]
struct DeliveriesVersion9 {
    origins: Vec<(RunId, OpenOriginVersion9)>,
    open: Vec<(DeliveryId, OpenDeliveryVersion9)>,
}

/// The form of an [`OpenOrigin`].
#[derive(Serialize, Deserialize)]
struct OpenOriginVersion9 {
    origin: JsonText<InputOrigin>,
    answer: Private<String>,
    cut_bytes: u64,
    end: Option<OriginEndVersion9>,
}

/// The form of an [`OriginEnd`].
#[derive(Serialize, Deserialize)]
enum OriginEndVersion9 {
    Answered,
    Failed { message: Private<String> },
}

/// The form of an [`OpenDelivery`].
#[derive(Serialize, Deserialize)]
struct OpenDeliveryVersion9 {
    seq: Seq,
    requested_at: Millis,
    kind: JsonText<DeliveryKind>,
    conversation: JsonText<ConversationRef>,
    reply_to: Option<MessageId>,
    parts: Vec<Private<String>>,
    sent: u32,
    attempts: u32,
    phase: DeliveryPhaseVersion9,
}

/// The form of a [`DeliveryPhase`].
#[derive(Serialize, Deserialize)]
enum DeliveryPhaseVersion9 {
    Pending,
    Held,
    Failed(JsonText<DeliveryFailure>),
}

/// A value as JSON text, in the form in which facts have it: the log keeps that form across releases.
pub(super) struct JsonText<T>(pub(super) T);

impl<T: Serialize> Serialize for JsonText<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        serde_json::to_string(&self.0).map_err(serde::ser::Error::custom)?.serialize(to)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for JsonText<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        // Without the text of the error, which may quote content (S-38).
        serde_json::from_str(&text).map(Self).map_err(|_| D::Error::custom("not JSON of this kind"))
    }
}

impl<'a> VersionedForm<'a> for StateVersion9<'a> {
    type Domain = State;

    fn borrow(state: &'a State) -> Self {
        Self { base: StateVersion8::borrow(state), deliveries: DeliveriesVersion9::borrow(&state.deliveries) }
    }

    fn into_domain(self) -> State {
        State { deliveries: self.deliveries.into_domain(), ..self.base.into_domain() }
    }
}

impl VersionedForm<'_> for DeliveriesVersion9 {
    type Domain = Deliveries;

    fn borrow(deliveries: &Deliveries) -> Self {
        let Deliveries { origins, gathered: _, open, suppressed: _, mirrors: _, mirrored: _, recent: _ } = deliveries;
        Self {
            origins: origins.iter().map(|(id, origin)| (id.clone(), OpenOriginVersion9::borrow(origin))).collect(),
            open: open.iter().map(|(id, delivery)| (id.clone(), OpenDeliveryVersion9::borrow(delivery))).collect(),
        }
    }

    fn into_domain(self) -> Deliveries {
        let Self { origins, open } = self;
        Deliveries {
            origins: origins.into_iter().map(|(id, origin)| (id, Box::new(origin.into_domain()))).collect(),
            gathered: BTreeSet::new(),
            open: open.into_iter().map(|(id, delivery)| (id, Box::new(delivery.into_domain()))).collect(),
            suppressed: Vec::new(),
            mirrors: Vec::new(),
            mirrored: BTreeMap::new(),
            recent: Vec::new(),
        }
    }
}

impl VersionedForm<'_> for OpenOriginVersion9 {
    type Domain = OpenOrigin;

    fn borrow(open: &OpenOrigin) -> Self {
        let OpenOrigin { origin, answer, cut_bytes, end, buttons: _ } = open;
        Self {
            origin: JsonText(origin.clone()),
            answer: answer.clone(),
            cut_bytes: *cut_bytes,
            end: end.as_ref().map(OriginEndVersion9::borrow),
        }
    }

    fn into_domain(self) -> OpenOrigin {
        let Self { origin, answer, cut_bytes, end } = self;
        OpenOrigin { origin: origin.0, answer, cut_bytes, end: end.map(OriginEndVersion9::into_domain), buttons: None }
    }
}

impl VersionedForm<'_> for OriginEndVersion9 {
    type Domain = OriginEnd;

    fn borrow(end: &OriginEnd) -> Self {
        match end {
            OriginEnd::Answered => Self::Answered,
            OriginEnd::Failed { message } => Self::Failed { message: message.clone() },
        }
    }

    fn into_domain(self) -> OriginEnd {
        match self {
            Self::Answered => OriginEnd::Answered,
            Self::Failed { message } => OriginEnd::Failed { message },
        }
    }
}

impl VersionedForm<'_> for OpenDeliveryVersion9 {
    type Domain = OpenDelivery;

    fn borrow(delivery: &OpenDelivery) -> Self {
        let OpenDelivery {
            seq,
            requested_at,
            kind,
            conversation,
            reply_to,
            parts,
            sent,
            attempts,
            phase,
            generation: _,
            buttons: _,
            change: _,
            binding: _,
            made: _,
        } = delivery;
        Self {
            seq: *seq,
            requested_at: *requested_at,
            kind: JsonText(*kind),
            conversation: JsonText(conversation.clone()),
            reply_to: reply_to.clone(),
            parts: parts.clone(),
            sent: *sent,
            attempts: *attempts,
            phase: DeliveryPhaseVersion9::borrow(phase),
        }
    }

    fn into_domain(self) -> OpenDelivery {
        let Self { seq, requested_at, kind, conversation, reply_to, parts, sent, attempts, phase } = self;
        OpenDelivery {
            seq,
            requested_at,
            kind: kind.0,
            conversation: conversation.0,
            reply_to,
            generation: None,
            buttons: None,
            change: None,
            binding: None,
            made: None,
            parts,
            sent,
            attempts,
            phase: phase.into_domain(),
        }
    }
}

impl VersionedForm<'_> for DeliveryPhaseVersion9 {
    type Domain = DeliveryPhase;

    fn borrow(phase: &DeliveryPhase) -> Self {
        match phase {
            // Version 10 knows which conversations are made.
            DeliveryPhase::Pending | DeliveryPhase::Made => Self::Pending,
            DeliveryPhase::Held => Self::Held,
            DeliveryPhase::Failed(reason) => Self::Failed(JsonText(*reason)),
        }
    }

    fn into_domain(self) -> DeliveryPhase {
        match self {
            Self::Pending => DeliveryPhase::Pending,
            Self::Held => DeliveryPhase::Held,
            Self::Failed(reason) => DeliveryPhase::Failed(reason.0),
        }
    }
}
