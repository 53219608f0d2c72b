//! `turnway-bench compare`: every row with Turnway alone at a small scale, so that the command keeps working
//! where the other products are not installed.
use std::path::Path;
use std::time::Duration;
use turnway_tests::real::bench::Bench;
use turnway_tests::real::command::Ended;

/// Deadline for all rows with their servers on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

async fn compare(dir: &Path, args: &[&str]) -> (Ended, String) {
    let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 9));
    let into = dir.display().to_string();
    let installed = dir.join("nothing").display().to_string();
    let args = [&["compare", "--quick", "--into", &into, "--installed", &installed], args].concat();
    let ended = Bench::new(dir, nowhere).patient(PATIENCE).run(&args).await;
    let page = std::fs::read_to_string(dir.join("compare.markdown")).unwrap_or_default();
    (ended, page)
}

#[tokio::test]
async fn comparison_measures_every_row_without_loss() {
    let dir = tempfile::tempdir().expect("a directory");
    let (ended, page) = compare(dir.path(), &["--peers", "turnway"]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.out, page);
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    assert_eq!(rows.len(), 9, "{page}");
    let cells: Vec<&str> = rows.iter().filter_map(|row| row.rsplit('|').nth(1)).map(str::trim).collect();
    assert!(cells.iter().all(|cell| cell.starts_with("**") && !cell.contains("no figure")), "{page}");
    // After a dropped connection and a killed node no message is lost; after a stall none is missing.
    assert_eq!(cells[6..8], ["**0**", "**0**"], "{page}");
    assert!(cells[8].ends_with(" / 0**"), "{page}");
    for row in ["idle", "latency", "max", "fanout", "across", "across-max", "drop", "kill", "stall"] {
        let plot = std::fs::read_to_string(dir.path().join(format!("compare-{row}.svg"))).expect("a plot");
        assert!(plot.starts_with("<svg ") && plot.contains(">Turnway<") && plot.ends_with("</svg>\n"));
    }
}

#[tokio::test]
async fn product_not_installed_is_left_out_of_the_comparison() {
    let dir = tempfile::tempdir().expect("a directory");
    let (ended, page) = compare(dir.path(), &["--peers", "nats,nchan,sockudo,socketio"]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for name in ["NATS", "nchan", "Sockudo", "Socket.IO"] {
        assert!(ended.err.contains(&format!("{name} is skipped: ")), "{ended:?}");
        assert!(page.contains(&format!("- {name} is skipped: ")), "{page}");
    }
    assert!(!page.contains("**"), "{page}");
}
