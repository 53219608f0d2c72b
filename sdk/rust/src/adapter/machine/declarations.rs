//! The capabilities that an adapter has declared, for its account and for conversations, and their declaration on each
//! connection. A change of one scope waits for the answer to the change before, because answers have no order.
use crate::adapter::capabilities::ChannelCapabilities;
use crate::adapter::output::AdapterEffects;
use crate::adapter::place::AccountPlace;
use crate::limits;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The conversation that capabilities are for; none: the account.
type CapabilityScope = Option<String>;

/// The declared capabilities. A message keeps the limits that were declared when it was brought, so a connection brings
/// nothing before everything is declared.
#[derive(Debug)]
pub(crate) struct Declarations {
    place: AccountPlace,
    account: ChannelCapabilities,
    conversations: BTreeMap<String, ChannelCapabilities>,
    /// Conversations with capabilities of their own, the one that was declared last at the end.
    by_age: VecDeque<String>,
    /// Scopes to declare on the present connection.
    due: VecDeque<CapabilityScope>,
    /// Scopes that were declared and have no answer, by request.
    sent: BTreeMap<u64, SentDeclaration>,
    /// Calls of `declare` that wait for the answer about their scope.
    waiting: Vec<(u64, CapabilityScope)>,
    /// True from `hello` to the loss of the connection.
    is_begun: bool,
}

#[derive(Debug)]
struct SentDeclaration {
    scope: CapabilityScope,
    until: Duration,
}

// === impl Declarations ===

impl Declarations {
    pub(crate) fn new(place: AccountPlace, account: ChannelCapabilities) -> Self {
        Self {
            place,
            account,
            conversations: BTreeMap::new(),
            by_age: VecDeque::new(),
            due: VecDeque::new(),
            sent: BTreeMap::new(),
            waiting: Vec::new(),
            is_begun: false,
        }
    }

    /// Returns the capabilities of the account, which `hello` declares.
    pub(crate) fn of_account(&self) -> &ChannelCapabilities {
        &self.account
    }

    /// Returns whether everything is declared on the present connection.
    pub(crate) fn is_complete(&self) -> bool {
        self.due.is_empty() && self.sent.is_empty()
    }

    /// Begins a connection: `hello` declares the account's capabilities, and each conversation's follow.
    pub(crate) fn begin(&mut self) {
        self.due = self.by_age.iter().cloned().map(Some).collect();
        self.is_begun = true;
    }

    /// Declares other capabilities from now on. Returns whether `request` waits for the gateway's answer; without a
    /// connection there is none, because the next one declares them.
    pub(crate) fn declare(
        &mut self,
        scope: CapabilityScope,
        capabilities: ChannelCapabilities,
        request: u64,
        fx: &mut AdapterEffects,
    ) -> bool {
        match &scope {
            None => self.account = capabilities,
            Some(conversation) => {
                self.by_age.retain(|other| other != conversation);
                if capabilities.is_empty() {
                    self.conversations.remove(conversation);
                } else {
                    self.conversations.insert(conversation.clone(), capabilities);
                    self.by_age.push_back(conversation.clone());
                }
                while self.by_age.len() > limits::OWN_CAPABILITIES_MAX {
                    if let Some(oldest) = self.by_age.pop_front() {
                        self.conversations.remove(&oldest);
                    }
                }
            }
        }
        if !self.is_begun {
            return false;
        }
        if !self.due.contains(&scope) {
            self.due.push_back(scope.clone());
        }
        self.waiting.push((request, scope));
        self.send_due(fx);
        true
    }

    /// Sends what is due.
    pub(crate) fn send_due(&mut self, fx: &mut AdapterEffects) {
        if fx.connection.is_none() {
            return;
        }
        for scope in std::mem::take(&mut self.due) {
            let is_on_its_way = self.sent.values().any(|sent| sent.scope == scope);
            if is_on_its_way || self.sent.len() >= limits::DECLARATIONS_AT_A_TIME {
                self.due.push_back(scope);
                continue;
            }
            let id = fx.next_id();
            fx.send(self.message(&scope, &fx.request_id(id)).to_string());
            let until = fx.now.elapsed + limits::ANSWER_TIMEOUT;
            self.sent.insert(id, SentDeclaration { scope, until });
        }
    }

    /// Handles an answer, also an error. Returns the calls of `declare` that the answer settles.
    pub(crate) fn handle_answer(&mut self, id: u64, fx: &mut AdapterEffects) -> Vec<u64> {
        let Some(SentDeclaration { scope, .. }) = self.sent.remove(&id) else { return Vec::new() };
        // A newer declaration of the same scope has the calls' capabilities, or later ones.
        let settled = if self.due.contains(&scope) { Vec::new() } else { self.take_waiting(|other| *other == scope) };
        self.send_due(fx);
        settled
    }

    /// Handles the loss of the connection: the next one declares everything. Returns the calls that waited.
    pub(crate) fn handle_lost(&mut self) -> Vec<u64> {
        self.is_begun = false;
        self.due.clear();
        self.sent.clear();
        self.take_waiting(|_| true)
    }

    /// Returns whether no further call of `declare` may wait.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= limits::DECLARATIONS_MAX
    }

    /// Returns whether a declaration has this number.
    pub(crate) fn has(&self, id: u64) -> bool {
        self.sent.contains_key(&id)
    }

    /// Returns the time at which a declaration counts as lost, and with it the connection.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.sent.values().map(|sent| sent.until).min()
    }

    fn take_waiting(&mut self, is_settled: impl Fn(&CapabilityScope) -> bool) -> Vec<u64> {
        let settled = self.waiting.iter().filter(|(_, scope)| is_settled(scope)).map(|(request, _)| *request).collect();
        self.waiting.retain(|(_, scope)| !is_settled(scope));
        settled
    }

    fn message(&self, scope: &CapabilityScope, request_id: &str) -> Value {
        let mut message = json!({ "type": "capabilities", "request_id": request_id });
        match scope {
            None => message["capabilities"] = self.account.to_wire(),
            Some(conversation) => {
                // Without capabilities of its own a conversation has those of the account.
                let own = self.conversations.get(conversation).cloned().unwrap_or_default();
                message["capabilities"] = own.to_wire();
                message["conversation"] = self.place.conversation(conversation, None);
            }
        }
        message
    }
}
