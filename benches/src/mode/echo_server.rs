//! A bare echo server: the node's library and the node's buffers, and nothing else of the node.
use crate::cli::EchoServer;
use crate::mode::announce;
use crate::trouble::Trouble;
use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until};
use tokio_tungstenite::tungstenite::{Error, Message};
use turnway::cli::Exit;
use turnway::listen::upgrade::codec;

/// Serves until it is told to stop, or its time is over.
pub async fn run(args: EchoServer) -> Result<Exit, Trouble> {
    let unavailable = |error| Trouble::Unavailable(format!("{}: {error}", args.listen));
    let listener = TcpListener::bind(args.listen).await.map_err(unavailable)?;
    announce(listener.local_addr().map_err(unavailable)?);
    tokio::select! {
        served = serve(&listener) => served.map_err(unavailable)?,
        () = sleep_until(Instant::now() + args.duration) => {}
        () = told_to_stop() => {}
    }
    Ok(Exit::Fine)
}

async fn serve(listener: &TcpListener) -> std::io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        // A client that leaves as it likes is no error of ours.
        tokio::task::spawn_local(async move { echo(stream).await.ok() });
    }
}

/// What comes together goes back together, as a node does it.
async fn echo(stream: TcpStream) -> Result<(), Error> {
    let mut socket = tokio_tungstenite::accept_async_with_config(stream, Some(codec())).await?;
    while let Some(message) = socket.next().await {
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
    Ok(())
}

/// SIGTERM or SIGINT.
pub(super) async fn told_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}
