//! Mode `echo-server`: an echo server with the node's libraries and buffers, and nothing else of the node. The
//! submodule `quic` is the same server for QUIC.
mod quic;

use crate::cli::EchoServer;
use crate::error::BenchError;
use crate::mode::print_ready;
use futures_util::{FutureExt, SinkExt, StreamExt};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Interval, interval_at, sleep_until};
use tokio_tungstenite::tungstenite::{Bytes, Error, Message};
use turnway::cli::CliExit;
use turnway::listen::upgrade::websocket_config;

/// Serves until the process is told to stop, or the time is over.
pub async fn run(args: EchoServer) -> Result<CliExit, BenchError> {
    let over = Instant::now() + args.duration;
    tokio::select! {
        served = serve(&args) => served?,
        () = sleep_until(over) => {}
        () = termination_signal() => {}
    }
    Ok(CliExit::Success)
}

async fn serve(args: &EchoServer) -> Result<(), BenchError> {
    if let Some(dir) = &args.quic {
        return quic::serve(args.listen, dir, args.beat).await;
    }
    let unavailable = |error| BenchError::Unavailable(format!("{}: {error}", args.listen));
    let listener = TcpListener::bind(args.listen).await.map_err(unavailable)?;
    print_ready(listener.local_addr().map_err(unavailable)?);
    accept(&listener, args.beat).await.map_err(unavailable)
}

async fn accept(listener: &TcpListener, beat: Option<Duration>) -> std::io::Result<()> {
    for n in 0.. {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let beat = beat.map(|beat| spread(beat, n));
        // A client may leave at any time, which is no error.
        tokio::task::spawn_local(async move { echo(stream, beat).await.ok() });
    }
    Ok(())
}

/// Spreads the heartbeats of connections, as a node does, because a wake-up for each would cost CPU time:
/// neighbours are far apart, and none differs by more than a tenth from the interval.
fn spread(beat: Duration, n: u32) -> Duration {
    beat * (900 + n.wrapping_mul(83) % 201) / 1000
}

/// Echoes messages; messages that arrive together are flushed together, as a node does.
async fn echo(stream: TcpStream, beat: Option<Duration>) -> Result<(), Error> {
    let mut socket = tokio_tungstenite::accept_async_with_config(stream, Some(websocket_config())).await?;
    let mut beats = beat.map(|beat| interval_at(Instant::now() + beat, beat));
    loop {
        let heard = tokio::select! {
            heard = socket.next() => heard,
            () = next_beat(&mut beats) => {
                socket.send(Message::Ping(Bytes::new())).await?;
                continue;
            }
        };
        let Some(message) = heard else { return Ok(()) };
        let mut next = Some(Some(message));
        while let Some(Some(message)) = next {
            match message? {
                message @ (Message::Text(_) | Message::Binary(_)) => socket.feed(message).await?,
                Message::Close(_) => return socket.close(None).await,
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
            next = socket.next().now_or_never();
        }
        socket.flush().await?;
    }
}

async fn next_beat(beats: &mut Option<Interval>) {
    match beats {
        Some(beats) => _ = beats.tick().await,
        None => std::future::pending().await,
    }
}

/// Waits for SIGTERM or SIGINT.
pub(super) async fn termination_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beats_differ_by_a_tenth_at_most() {
        let beat = Duration::from_secs(25);
        let beats: Vec<Duration> = (0..201).map(|n| spread(beat, n)).collect();
        assert_eq!((beats.iter().min(), beats.iter().max()), (Some(&(beat * 9 / 10)), Some(&(beat * 11 / 10))));
        assert!(spread(beat, u32::MAX) <= beat * 11 / 10);
    }
}
