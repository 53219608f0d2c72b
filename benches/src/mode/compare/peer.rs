//! What a load has to know of a system: how it is started, listened to, and spoken to.
use super::ground::{Ground, Server};
use super::mark::Mark;
use super::{nats, nchan, socketio, sockudo, turnway};
use crate::cli::System;
use crate::trouble::{Lost, Trouble};
use futures_util::future::LocalBoxFuture;
use tokio_tungstenite::tungstenite::Message;

/// A system that is compared.
pub trait Peer {
    /// As the table calls it.
    fn name(&self) -> &'static str;

    /// Which version is installed, or what is missing.
    fn version(&self, ground: &Ground) -> Result<String, String>;

    /// Starts so many nodes of one fleet, ready to serve.
    fn start<'a>(&'a self, ground: &'a Ground, plan: Plan) -> LocalBoxFuture<'a, Result<Fleet, Trouble>>;

    /// Somebody who listens to one channel.
    fn ear(&self, channel: &str) -> Box<dyn Ear>;

    /// Somebody who is connected, has a channel of his own, and does nothing.
    fn idle_ear(&self, channel: &str) -> Box<dyn Ear> {
        self.ear(channel)
    }

    /// Somebody at this node who speaks to these channels.
    fn mouth<'a>(
        &'a self,
        node: &'a Server,
        channels: &'a [String],
    ) -> LocalBoxFuture<'a, Result<Box<dyn Mouth>, Trouble>>;
}

/// How a fleet is set up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// It has two nodes, and what joins them.
    pub is_pair: bool,
    /// What lets a subscriber take up where it was is switched on, where that is a choice.
    pub recovers: bool,
}

/// Nodes that belong together, and the Redis between them. All are killed when dropped.
#[derive(Debug)]
pub struct Fleet {
    /// The first is the one that is spoken to.
    pub nodes: Vec<Server>,
    /// Kept while they need it.
    pub redis: Option<Server>,
}

/// Where a listener's WebSocket is.
#[derive(Clone, Debug)]
pub struct Door {
    /// With its query.
    pub path: String,
    /// The subprotocol to offer.
    pub protocol: Option<&'static str>,
}

/// What comes of a frame beside messages.
#[derive(Debug)]
pub enum Reply {
    /// Nothing.
    Nothing,
    /// This is answered.
    Say(Message),
    /// From now on nothing is missed.
    Ready,
}

/// The listening end of a protocol, and what it has to remember to take up where it was.
pub trait Ear {
    /// Where to connect, the first time or again.
    fn door(&self) -> Door;

    /// What is said once connected; whoever says nothing is ready at once.
    fn opening(&mut self) -> Option<Message>;

    /// Reads a frame.
    fn hear(&mut self, frame: &[u8], into: &mut dyn FnMut(Mark)) -> Reply;
}

/// A message on its way to a channel.
#[derive(Clone, Debug)]
pub struct Line {
    /// Which, counted as they were given to [`Peer::mouth`].
    pub channel: usize,
    /// What.
    pub text: String,
}

/// The speaking end.
pub trait Mouth {
    /// Says all of these, in order.
    fn say<'a>(&'a mut self, lines: &'a [Line]) -> LocalBoxFuture<'a, Result<(), Lost>>;
}

/// The driver of a system.
pub fn of(system: System) -> Box<dyn Peer> {
    match system {
        System::Turnway => Box::<turnway::Turnway>::default(),
        System::Nats => Box::new(nats::Nats),
        System::Nchan => Box::new(nchan::Nchan),
        System::Sockudo => Box::new(sockudo::Sockudo),
        System::Socketio => Box::new(socketio::SocketIo),
    }
}
