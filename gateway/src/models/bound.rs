//! The most that a call may use, as its budgets reserve it, and the words with which a budget refuses a call.
use super::ModelCall;
use super::budget::{BudgetAmount, BudgetExhausted, BudgetKind, BudgetRefusal, BudgetRefusalReason, BudgetResource};
use super::price::{cost, most_cost};
use crate::config::ModelSpec;
use crate::config::model::ModelPrice;
use std::fmt;
use turnway_wire::model::{CallFormat, TokenUsage};

/// An amount that no limit admits: of a call whose answer has no limit.
pub(super) const UNKNOWN: BudgetAmount = BudgetAmount { tokens: u64::MAX, cost: Some(u64::MAX) };

/// A refusal of a call by a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallBudgetRefusal {
    /// The call is made under a budget, and neither the call nor its model limits the output.
    NeedsOutputLimit,
    Account(BudgetRefusal),
}

/// Returns the most that a call may use at any of these upstreams: a token for each byte of the body, and the limit of the
/// output. `None` if the output has no limit.
pub(super) fn most<'a>(
    request: &ModelCall,
    specs: impl Iterator<Item = &'a ModelSpec> + Clone,
) -> Option<BudgetAmount> {
    let input = request.body.len() as u64;
    let of_models = || specs.clone().map(|spec| spec.max_output).reduce(|one, other| Some(one?.max(other?))).flatten();
    let output = match request.format {
        CallFormat::Embeddings => 0,
        CallFormat::ChatCompletions | CallFormat::Responses | CallFormat::Messages => {
            request.call.output_bound(of_models())?
        }
    };
    let costs = specs.clone().map(|spec| most_cost(spec.price, input, output));
    let most_expensive = costs.reduce(|one, other| Some(one?.max(other?))).flatten();
    Some(BudgetAmount { tokens: input.saturating_add(output), cost: most_expensive })
}

/// Returns the amount of a call; `None` if it is not known.
pub(super) fn used(usage: &TokenUsage, price: ModelPrice) -> Option<BudgetAmount> {
    let input = usage.input?;
    // Answers without output, such as embeddings, have no count of it.
    let tokens = input.saturating_add(usage.output.unwrap_or(0));
    Some(BudgetAmount { tokens, cost: cost(price, usage) })
}

// === impl CallBudgetRefusal ===

impl fmt::Display for CallBudgetRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Account(BudgetRefusal { account, reason }) = self else {
            return write!(
                f,
                "the call is made under a budget: set a limit of its output (`max_completion_tokens`, `max_output_tokens` or \
                 `max_tokens`), or have the operator set `max_output` of the model"
            );
        };
        let whose = match account.kind {
            BudgetKind::Tenant => "the budget of the tenant".to_owned(),
            BudgetKind::User => "the budget of the user".to_owned(),
            BudgetKind::Key => "the budget of the API key".to_owned(),
            BudgetKind::Agent => format!("the budget of the agent {}", account.name),
        };
        match reason {
            BudgetRefusalReason::Exhausted(BudgetExhausted { resource, limit, settled, reserved, .. }) => {
                let unit = match resource {
                    BudgetResource::Tokens => "tokens",
                    BudgetResource::Cost => "millionths of a currency unit",
                };
                write!(
                    f,
                    "{whose} is exhausted: of {limit} {unit}, {settled} are used and {reserved} are reserved by open calls, and \
                     the call may use more than the rest"
                )
            }
            BudgetRefusalReason::UnknownPrice => {
                write!(f, "{whose} has a limit of cost, and the model has no price for such a call")
            }
            BudgetRefusalReason::Busy { .. } => write!(f, "{whose} has too many open calls; try again later"),
            BudgetRefusalReason::Unavailable { .. } => {
                write!(f, "{whose} cannot be read, because the store is away; try again later")
            }
            BudgetRefusalReason::Unreadable => write!(f, "{whose} cannot be read: it was written by a newer release"),
        }
    }
}
