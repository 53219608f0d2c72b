//! The interface of a compared system: starting, subscribing and publishing.
use super::test_message::TestMessage;
use super::workspace::{Server, Workspace};
use super::{nats, nchan, socketio, sockudo, turnway};
use crate::cli::System;
use crate::error::{BenchError, ConnectionFailure};
use futures_util::future::LocalBoxFuture;
use tokio_tungstenite::tungstenite::Message;

/// A system in the comparison.
pub trait ComparedSystem {
    /// Returns the name in the table.
    fn name(&self) -> &'static str;

    /// Returns the installed version, or what is missing.
    fn version(&self, ground: &Workspace) -> Result<String, String>;

    /// Starts the nodes of a fleet, and returns when they serve.
    fn start<'a>(&'a self, ground: &'a Workspace, plan: FleetSetup) -> LocalBoxFuture<'a, Result<Fleet, BenchError>>;

    /// Returns the subscriber side of the protocol for one channel.
    fn subscriber(&self, channel: &str) -> Box<dyn SubscriberProtocol>;

    /// Returns the protocol of an idle connection with a channel of its own.
    fn idle_subscriber(&self, channel: &str) -> Box<dyn SubscriberProtocol> {
        self.subscriber(channel)
    }

    /// Opens a publishing connection at this node for these channels.
    fn publisher<'a>(
        &'a self,
        node: &'a Server,
        channels: &'a [String],
    ) -> LocalBoxFuture<'a, Result<Box<dyn ChannelPublisher>, BenchError>>;
}

/// The setup of a fleet.
#[derive(Clone, Copy, Debug, Default)]
pub struct FleetSetup {
    /// Two nodes, and whatever joins them.
    pub is_pair: bool,
    /// Enables the recovery of missed messages, if the system has it as an option.
    pub recovers: bool,
}

/// The nodes of a fleet and their Redis. All are killed on drop.
#[derive(Debug)]
pub struct Fleet {
    /// The first node is the one that is published to.
    pub nodes: Vec<Server>,
    /// Redis that the nodes share, if they need one.
    pub redis: Option<Server>,
}

/// The WebSocket address of a subscriber.
#[derive(Clone, Debug)]
pub struct SubscriberEndpoint {
    /// Path with query.
    pub path: String,
    /// Subprotocol to offer.
    pub protocol: Option<&'static str>,
}

/// The consequence of a frame, besides messages.
#[derive(Debug)]
pub enum FrameEffect {
    Nothing,
    /// An answer to send.
    Send(Message),
    /// The subscription is active.
    Ready,
}

/// The subscriber side of a protocol, with the state to resume after a reconnect.
pub trait SubscriberProtocol {
    /// Returns the address to connect to, for the first time or again.
    fn endpoint(&self) -> SubscriberEndpoint;

    /// Returns the first message after connecting; without one the subscription is active at once.
    fn first_message(&mut self) -> Option<Message>;

    /// Handles a frame, and calls `into` for each message in it.
    fn handle_frame(&mut self, frame: &[u8], into: &mut dyn FnMut(TestMessage)) -> FrameEffect;
}

/// A message to publish.
#[derive(Clone, Debug)]
pub struct OutgoingMessage {
    /// Index of the channel in the list given to [`ComparedSystem::publisher`].
    pub channel: usize,
    pub text: String,
}

/// A publishing connection.
pub trait ChannelPublisher {
    /// Publishes all messages in order.
    fn publish<'a>(&'a mut self, lines: &'a [OutgoingMessage]) -> LocalBoxFuture<'a, Result<(), ConnectionFailure>>;
}

/// Returns the driver of a system.
pub fn driver(system: System) -> Box<dyn ComparedSystem> {
    match system {
        System::Turnway => Box::<turnway::Turnway>::default(),
        System::Nats => Box::new(nats::Nats),
        System::Nchan => Box::new(nchan::Nchan),
        System::Sockudo => Box::new(sockudo::Sockudo),
        System::Socketio => Box::new(socketio::SocketIo),
    }
}
