//! The only way to change a session's state: each fact is given to its family, live and on replay (RX-3).
use crate::id::{Cursor, Epoch, Seq};
use crate::protocol::entry::{Entry, Fact};
use crate::session::state::State;
use crate::session::{
    action_apply, delivery_apply, handover_apply, input_apply, member_apply, model_apply, run_apply, session_apply,
};

impl State {
    /// Returns the state after these facts.
    pub fn from_facts<'a>(facts: impl IntoIterator<Item = (Epoch, &'a Entry)>) -> Self {
        let mut state = Self::default();
        for (epoch, entry) in facts {
            state.apply(epoch, entry);
        }
        state
    }

    /// Applies the next fact.
    pub fn apply(&mut self, epoch: Epoch, entry: &Entry) {
        self.tail = Cursor { seq: Seq(self.tail.seq.0 + 1), epoch };
        self.time = self.time.max(entry.time);
        match &entry.fact {
            Fact::Session(fact) => session_apply::apply(self, entry.time, fact),
            Fact::Member(fact) => member_apply::apply(self, fact),
            Fact::Handover(fact) => handover_apply::apply(self, entry, fact),
            Fact::Action(fact) => action_apply::apply(self, entry, fact),
            Fact::Binding(fact) => delivery_apply::apply_binding(self, fact),
            Fact::Delivery(fact) => delivery_apply::apply(self, entry.time, fact),
            Fact::Model(fact) => model_apply::apply(self, entry, fact),
            Fact::Input(fact) => {
                entry.run_id.iter().for_each(|run_id| input_apply::apply(self, run_id, entry, fact));
            }
            Fact::Run(fact) => entry.run_id.iter().for_each(|run_id| run_apply::apply(self, run_id, entry, fact)),
            Fact::Unknown(_) => self.has_unknown_facts = true,
        }
    }
}
