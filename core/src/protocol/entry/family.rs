//! The tables of facts: each family is defined in one table, and all properties of a fact follow from its row.

use super::LOWEST_FACT_LEVEL;

/// The properties of one type of fact: its row in the table of its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FactKind {
    /// The `type` on the wire.
    pub name: &'static str,
    /// The messages that links get, in order. A message in parentheses is conditional; `event` is followed by its name.
    /// A notice named after an error code is an `error`: a request failed. A fact without messages is sent as an
    /// `event` of its own type to a link whose `types` match it.
    pub messages: &'static str,
    /// The fact ends a turn.
    pub ends_turn: bool,
    /// A transaction begins with the fact; the fact's id then names the transaction.
    pub starts_transaction: bool,
    /// Lists of sessions show the text or number in the field of this name of the fact's data; an empty text or a 0
    /// removes it from the lists, and a fact without the field changes nothing.
    pub annotates: Option<&'static str>,
    /// The first level of facts ([`FACT_LEVEL`](super::FACT_LEVEL)) that has the fact. A request that leads to the fact
    /// is refused while a live node announces a lower level.
    pub since: u32,
    /// Links get one message, whose fields are the fact's data. No run is the subject of such a fact.
    pub is_plain: bool,
}

impl FactKind {
    pub(super) const fn new(name: &'static str, messages: &'static str) -> Self {
        Self {
            name,
            messages,
            ends_turn: false,
            starts_transaction: false,
            annotates: None,
            since: LOWEST_FACT_LEVEL,
            is_plain: false,
        }
    }

    pub(super) const fn ends_turn(self) -> Self {
        Self { ends_turn: true, ..self }
    }

    pub(super) const fn starts_transaction(self) -> Self {
        Self { starts_transaction: true, ..self }
    }

    pub(super) const fn plain(self) -> Self {
        Self { is_plain: true, ..self }
    }

    /// Returns the `type` of the message to links, and its `name` if it is an `event`, if the fact is plain.
    pub fn plain_message(&self) -> Option<(&'static str, Option<&'static str>)> {
        self.is_plain.then(|| match self.messages.strip_prefix("event ") {
            Some(name) => ("event", Some(name)),
            None => (self.messages, None),
        })
    }

    /// Sets the field of the data that lists of sessions show.
    pub const fn annotates(self, field: &'static str) -> Self {
        Self { annotates: Some(field), ..self }
    }

    /// Sets the first level of facts that has the fact.
    pub const fn since(self, level: u32) -> Self {
        Self { since: level, ..self }
    }
}

/// Defines a family of facts by a table: `"type on the wire" -> "messages" [properties] => Variant { data }`.
macro_rules! fact_family {
    (
        $(#[$meta:meta])*
        pub enum $family:ident {
            $(
                $(#[$doc:meta])*
                $wire:literal -> $messages:literal $([$($property:ident $(($value:literal))?),+])? =>
                $variant:ident $({ $($fields:tt)* })? $(( $($payload:tt)* ))?
            ),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(tag = "type", content = "data")]
        pub enum $family {
            $(
                $(#[$doc])*
                #[serde(rename = $wire)]
                $variant $({ $($fields)* })? $(( $($payload)* ))?,
            )+
        }

        impl $family {
            /// The table of the family.
            pub const KINDS: &'static [FactKind] = &[$(FactKind::new($wire, $messages)$($(.$property($($value)?))+)?),+];

            /// Returns the fact's row in the table.
            pub(super) fn kind(&self) -> &'static FactKind {
                match self {
                    $(Self::$variant { .. } => const { &FactKind::new($wire, $messages)$($(.$property($($value)?))+)? },)+
                }
            }

            /// Returns whether the family has a fact of this type.
            pub(super) fn has(name: &str) -> bool {
                matches!(name, $($wire)|+)
            }
        }
    };
}
pub(super) use fact_family;
