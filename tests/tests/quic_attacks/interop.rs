//! Tests interoperability with another QUIC implementation: ngtcp2 with GnuTLS, as Debian packages them.
use super::node;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::tempdir;
use turnway_tests::real::python::{Running, run, script};

/// Returns the directory of `NGTCP2_DIR`, else the one that `./test` unpacks: `usr` of Debian's packages.
fn ngtcp2() -> PathBuf {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/ngtcp2");
    let dir = std::env::var_os("NGTCP2_DIR").map_or(unpacked, PathBuf::from).join("usr");
    assert!(dir.join("include/ngtcp2").exists(), "no {}: `./test` makes it", dir.display());
    dir
}

/// Builds the C client, which takes a second and is no part of the workspace.
fn pipe(dir: &Path) -> PathBuf {
    let usr = ngtcp2();
    let pipe = dir.join("quic_pipe");
    let libraries = std::fs::read_dir(usr.join("lib")).expect("libraries").next().expect("one");
    let libraries = libraries.expect("a directory").path();
    let built = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(usr.join("include"))
        .arg("-o")
        .args([&pipe, &Path::new(env!("CARGO_MANIFEST_DIR")).join("c/quic_pipe.c")])
        .arg("-L")
        .arg(&libraries)
        .arg(format!("-Wl,-rpath,{}", libraries.canonicalize().expect("a path").display()))
        .args(["-lngtcp2_crypto_gnutls", "-lngtcp2", "-l:libgnutls.so.30"])
        .output()
        .expect("cc runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    pipe
}

/// Covers: MP-A1, G-22, RX-21.
#[tokio::test]
async fn ngtcp2_client_switches_transport_within_an_answer() {
    let mut agent = Running::start(script("agent_plain.py", &["4"]));
    let line = agent.line().await;
    let port = line.strip_prefix("listening ").expect("its port");
    let dir = tempdir().expect("a directory");
    let pipe = pipe(dir.path());
    let flag = format!("plain=http://127.0.0.1:{port},on_owner_loss=retry");
    let (mut node, quic, _, pair) = node(&dir, &["--agent", &flag]).await;
    let quic = quic.port().to_string();
    let wss = node.http.port().to_string();
    let args = [pipe.to_str().expect("UTF-8"), &quic, &wss, pair.ca(), "plain"];
    let said = run("client_ngtcp2.py", &args).await;
    assert_eq!(said.lines().filter(|line| line.starts_with("holds: ")).count(), 3, "{said}");
    node.must_run();
}
