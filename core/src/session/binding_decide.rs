//! Decisions about bindings of conversations: the store has decided, and the log records each change once, in any phase of
//! the session.
use crate::protocol::entry::{BindingFact, Fact};
use crate::protocol::input::ControlRequest;
use crate::session::command::{BindingFactCommand, DeliveryFactCommand};
use crate::session::context::SessionContext;
use crate::session::plan::{Plan, RecordContext};

/// Decides on a command about bindings.
pub(super) fn decide(context: &SessionContext, command: BindingFactCommand, plan: &mut Plan) {
    let BindingFactCommand::Take((position, control)) = command;
    let fact = if let ControlRequest::RecordBinding { bound } = &control.what {
        BindingFact::Bound((**bound).clone())
    } else if let ControlRequest::RecordBindingEnd { ended, farewell } = &control.what {
        if *farewell {
            plan.delivery(DeliveryFactCommand::Farewell(ended.clone()));
        }
        BindingFact::Ended((**ended).clone())
    } else {
        return plan.answer_without_fact(position, &control);
    };
    let ended_id = if let BindingFact::Ended(ended) = &fact { Some(ended.binding_id.clone()) } else { None };
    let about = RecordContext { answers: Some(position), ..RecordContext::default() };
    plan.record(context, Fact::Binding(fact), about);
    ended_id.into_iter().for_each(|binding_id| plan.delivery(DeliveryFactCommand::EndRouted(binding_id)));
    plan.answer_with_fact(&control);
}
