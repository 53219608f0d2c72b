//! Sockudo: Pusher's protocol, published by signed HTTP requests.
use super::ground::{Ground, Server};
use super::peer::{Ear, Fleet, Mouth, Peer, Plan};
use crate::trouble::Trouble;
use futures_util::future::LocalBoxFuture;

pub struct Sockudo;

impl Peer for Sockudo {
    fn name(&self) -> &'static str {
        "Sockudo"
    }
    fn version(&self, _: &Ground) -> Result<String, String> {
        Err("not yet".to_owned())
    }
    fn start<'a>(&'a self, _: &'a Ground, _: Plan) -> LocalBoxFuture<'a, Result<Fleet, Trouble>> {
        Box::pin(async { Err(Trouble::Failed("not yet".to_owned())) })
    }
    fn ear(&self, _: &str) -> Box<dyn Ear> {
        super::nats::Nats.ear("")
    }
    fn mouth<'a>(
        &'a self,
        _: &'a Server,
        _: &'a [String],
    ) -> LocalBoxFuture<'a, Result<Box<dyn Mouth>, Trouble>> {
        Box::pin(async { Err(Trouble::Failed("not yet".to_owned())) })
    }
}
