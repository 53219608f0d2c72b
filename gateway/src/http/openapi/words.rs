//! Closed sets of words in the OpenAPI document. Taken from the enums whose names the server writes, so that a new name is
//! in the document at once.
use serde::Serialize;
use std::borrow::Cow;
use turnway_core::protocol::binding::{TargetKind, UnbindReason};
use turnway_core::protocol::delivery::{DeliveryFailure, DeliveryKind};
use turnway_core::protocol::input::Strategy;
use turnway_wire::channel::binding::CandidateVerdict;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::{PartialSchema, ToSchema};

macro_rules! word_sets {
    ($($(#[doc = $description:literal])? $schema:ident as $name:literal => $words:expr;)*) => {$(
        $(#[doc = $description])?
        #[derive(Debug, Serialize)]
        pub(super) struct $schema;

        impl PartialSchema for $schema {
            fn schema() -> RefOr<Schema> {
                let words = $words.iter().map(|word| word.as_str());
                let set = ObjectBuilder::new().schema_type(SchemaType::Type(Type::String)).enum_values(Some(words));
                $(let set = set.description(Some($description.trim()));)?
                set.into()
            }
        }

        impl ToSchema for $schema {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed($name)
            }
        }
    )*};
}

word_sets! {
    /// Handling of an input that arrives while a turn is open
    StrategySchema as "Strategy" => Strategy::ALL;
    TargetKindSchema as "TargetKind" => TargetKind::ALL;
    VerdictSchema as "Verdict" => CandidateVerdict::ALL;
    UnbindReasonSchema as "UnbindReason" => UnbindReason::OF_REQUESTS;
    DeliveryKindSchema as "DeliveryKind" => DeliveryKind::ALL;
    DeliveryFailureSchema as "DeliveryFailure" => DeliveryFailure::ALL;
}
