//! Sockudo: Pusher's protocol, published by signed HTTP requests.
use super::ground::{Ground, Server};
use super::peer::{Ear, Fleet, Mouth, Peer, Plan};
use crate::trouble::Trouble;
use futures_util::future::LocalBoxFuture;
pub struct Sockudo;
