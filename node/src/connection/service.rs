//! The machine of the connection of an agent that dials in, or of a tool runner. The machine has the duties of every
//! role; the role's messages are a [`ServiceProtocol`].
use super::{ConnectionConfig, ConnectionState, Input, Output};
use std::fmt;
use turnway_core::limits::{self, MESSAGE_BYTES_MAX};
use turnway_core::machine::Machine;
use turnway_core::time::{Deadline, Now};
use turnway_wire::channel::close_code;
use turnway_wire::channel::json::render;
use turnway_wire::channel::notification::Notification;

/// The messages of one role on its connection.
pub trait ServiceProtocol: fmt::Debug + Send {
    /// An input that only this role has, such as an order for the peer.
    type Command: fmt::Debug + Send;
    /// An output that only this role has, such as a message of the peer.
    type Event: fmt::Debug + Send;
    /// The reason of the close with 4508, for a person.
    const UNREAD_REASON: &'static str;

    /// Handles a text message of the peer; its size is within the limit.
    fn handle_text(&mut self, now: Now, connection: &mut ConnectionState<Self::Event>, text: &str);

    /// Handles a command of the role.
    fn handle_command(&mut self, now: Now, connection: &mut ConnectionState<Self::Event>, command: Self::Command);

    /// Handles that every text drained so far was written.
    fn handle_flushed(&mut self) {}

    /// Handles a wake-up that did not close the connection.
    fn handle_timeout(&mut self, _: Now) {}

    /// Returns the next wake-up that only this role needs.
    fn poll_timeout(&self) -> Option<Deadline> {
        None
    }

    /// Handles the close of the connection; no other call follows.
    fn handle_closed(&mut self) {}
}

/// One connection of an authenticated agent or tool runner.
///
/// Every written text must be flushed within [`limits::STALL_TIMEOUT`], or the connection closes. After `Close` the
/// connection ignores every input.
#[derive(Debug)]
pub struct ServiceConnection<P: ServiceProtocol> {
    state: ConnectionState<P::Event>,
    protocol: P,
}

// === impl ServiceConnection ===

impl<P: ServiceProtocol> ServiceConnection<P> {
    /// Creates the connection of a peer that was just authenticated, and sends `welcome`.
    pub(crate) fn open(now: Now, config: &ConnectionConfig, protocol: P) -> Self {
        let mut state = ConnectionState::new(now, config.heartbeat_permille);
        state.welcome(now, config.node, &config.connection_id, 0, config.expires);
        Self { state, protocol }
    }

    /// Returns the state of the role.
    pub(crate) fn protocol(&self) -> &P {
        &self.protocol
    }

    fn dispatch(&mut self, now: Now, input: Input<P::Command>) {
        let state = &mut self.state;
        match input {
            Input::Text(text) => {
                state.record_activity(now);
                // The transport enforces the same limit; this check does not rely on it.
                if text.len() > MESSAGE_BYTES_MAX {
                    return state.too_large(now, MESSAGE_BYTES_MAX);
                }
                self.protocol.handle_text(now, state, &text);
            }
            Input::Binary => state.refuse_binary(),
            Input::TooLarge => state.too_large(now, MESSAGE_BYTES_MAX),
            Input::SignOfLife => state.record_activity(now),
            Input::Draining => write_go_away(now, state),
            Input::Refreshed { request_id, renewal } => {
                state.handle_refreshed(now, &request_id, renewal, "expected a valid token of the same user");
            }
            Input::Flushed => {
                state.record_flush();
                self.protocol.handle_flushed();
            }
            Input::Command(command) => self.protocol.handle_command(now, state, command),
        }
    }

    /// Handles the deadlines that are due; those that close the connection come first.
    fn check_deadlines(&mut self, now: Now) {
        let state = &mut self.state;
        if state.close_if_expired(now) {
            return;
        }
        if state.stall_deadline().is_some_and(|stall| stall.at <= now.mono) {
            return state.close(close_code::SLOW_READER, P::UNREAD_REASON);
        }
        if state.close_if_idle(now) {
            return;
        }
        self.protocol.handle_timeout(now);
        state.send_due_ping(now);
    }

    fn finish_step(&mut self) {
        if self.state.is_closed() {
            self.protocol.handle_closed();
        }
    }
}

impl<P: ServiceProtocol> Machine for ServiceConnection<P> {
    type Input = Input<P::Command>;
    type Output = Output<P::Event>;

    fn handle_input(&mut self, now: Now, input: Self::Input) {
        if !self.state.is_closed() {
            if !self.state.close_if_over(now) {
                self.dispatch(now, input);
            }
            self.finish_step();
        }
    }

    fn handle_timeout(&mut self, now: Now) {
        if self.poll_timeout().is_some_and(|deadline| deadline.at <= now.mono) {
            self.check_deadlines(now);
            self.finish_step();
        }
    }

    fn poll_output(&mut self) -> Option<Self::Output> {
        self.state.poll_output()
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        if self.state.is_closed() {
            return None;
        }
        let state = &self.state;
        let always = [state.idle_deadline(), state.ping_deadline()];
        let others = [self.protocol.poll_timeout(), state.stall_deadline(), state.expiry_deadline()];
        always.into_iter().chain(others.into_iter().flatten()).min()
    }
}

fn write_go_away<E>(now: Now, state: &mut ConnectionState<E>) {
    let within = limits::GO_AWAY_WITHIN;
    let jitter = limits::GO_AWAY_JITTER;
    let note = Notification::GoAway { reason: "drain", within, jitter };
    render::render(now.store, "", &note, &mut |text| state.write(now, text));
}
