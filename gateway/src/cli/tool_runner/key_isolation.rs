//! Keeps the runner's API key from the programs that it runs (G24): the key is in no environment, command line
//! or file descriptor of this process, and other processes of the same user cannot read its memory.
use super::ToolRunnerArgs;
use crate::cli::CliError;
use rustix::process::{DumpableBehavior, geteuid, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Environment variable that may hold the key.
pub(super) const KEY_VARIABLE: &str = "TURNWAY_API_KEY";
/// Flag that may hold the key; every user of the machine can see such a key for a moment.
const KEY_FLAG: &str = "--api-key";
/// Flag that tells the re-executed process to read the key from its standard input.
pub(super) const ON_STDIN: &str = "api-key-on-stdin";
/// Maximum size of a key; a pipe takes this many bytes without a reader.
const KEY_BYTES_MAX: u64 = 4096;

/// Takes the key out of everything that other processes can read. If the key came by the environment or the
/// command line, the process re-executes itself with the key in a pipe on its standard input, and this function
/// does not return. Must be called before other threads are started.
pub(super) fn isolate_key(mut args: ToolRunnerArgs) -> Result<ToolRunnerArgs, CliError> {
    harden().map_err(|error| unavailable("cannot protect the key from the programs", &error))?;
    let key = match (args.api_key_on_stdin, &args.api_key_file, &args.gateway.api_key) {
        (true, _, _) => {
            let read = read_key_from_stdin();
            Some(read.map_err(|error| unavailable("cannot read the key from the standard input", &error))?)
        }
        (false, Some(_), Some(_)) => {
            return Err(CliError::Usage(format!("use either --api-key-file or {KEY_VARIABLE}, not both")));
        }
        (false, Some(file), None) => Some(read_key_file(file)?),
        (false, None, Some(key)) if !key.is_empty() => {
            return Err(unavailable("cannot re-execute the runner", &reexecute(key)));
        }
        (false, None, _) => None,
    };
    args.gateway.api_key = key;
    Ok(args)
}

/// Prevents other processes of the user from reading this one's memory or attaching to it, makes inherited
/// descriptors close on exec, and, where the runner is root, keeps programs from gaining the capability to
/// inspect other processes.
fn harden() -> io::Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    close_fds::set_fds_cloexec(3, &[]);
    if geteuid().is_root() {
        // A container may have removed the right to do this, and the capability with it.
        let _ = remove_capability_from_bounding_set(CapabilitySet::SYS_PTRACE);
    }
    Ok(())
}

fn read_key_from_stdin() -> io::Result<String> {
    let mut key = String::new();
    io::stdin().lock().take(KEY_BYTES_MAX).read_to_string(&mut key)?;
    // The pipe has been read to its end, and nothing else is expected on the standard input.
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(key)
}

/// Reads a key file. A file that other users can read is refused, because programs may run as other users.
fn read_key_file(path: &Path) -> Result<String, CliError> {
    let unread = |error: io::Error| unavailable(&path.display().to_string(), &error);
    let file = File::open(path).map_err(unread)?;
    let mode = file.metadata().map_err(unread)?.permissions().mode();
    if mode & 0o007 != 0 {
        let path = path.display();
        return Err(CliError::Usage(format!("{path}: accessible to other users (chmod o-rwx)")));
    }
    let mut key = String::new();
    file.take(KEY_BYTES_MAX).read_to_string(&mut key).map_err(unread)?;
    Ok(key.trim().to_owned())
}

/// Executes this program again with the same arguments and environment, but with the key in a pipe on its
/// standard input.
fn reexecute(key: &str) -> io::Error {
    let handed_over = || {
        let (reader, mut writer) = io::pipe()?;
        // Writing more than the pipe's capacity would block, because there is no reader yet.
        if key.len() as u64 > KEY_BYTES_MAX {
            return Err(io::Error::other("the key is too long"));
        }
        writer.write_all(key.as_bytes())?;
        Ok(reader)
    };
    let reader = match handed_over() {
        Ok(reader) => reader,
        Err(error) => return error,
    };
    let mut all = std::env::args_os();
    let own_name = all.next().unwrap_or_else(|| OsString::from("turnway"));
    let mut command = Command::new(executable_path());
    command.arg0(own_name).args(without_key(all)).arg(format!("--{ON_STDIN}"));
    command.env_remove(KEY_VARIABLE).stdin(Stdio::from(reader)).exec()
}

/// Returns the path of this program, as shown in a process list, or `/proc/self/exe` if the file has been
/// replaced since the start.
fn executable_path() -> PathBuf {
    let known = std::env::current_exe().ok().filter(|path| path.is_file());
    known.unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
}

fn without_key(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args = args.peekable();
    let mut kept = Vec::new();
    while let Some(arg) = args.next() {
        if arg == OsStr::new(KEY_FLAG) {
            args.next();
        } else if !arg.as_bytes().starts_with(format!("{KEY_FLAG}=").as_bytes()) {
            kept.push(arg);
        }
    }
    kept
}

fn unavailable(what: &str, error: &io::Error) -> CliError {
    CliError::Unavailable(format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_is_removed_from_the_arguments() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let kept = |text: &str| without_key(words(text).into_iter());
        assert_eq!(kept("tool-runner --api-key twk_a --allow x"), words("tool-runner --allow x"));
        assert_eq!(kept("tool-runner --api-key=twk_a --allow x"), words("tool-runner --allow x"));
        assert_eq!(kept("tool-runner --api-key-file f --url u"), words("tool-runner --api-key-file f --url u"));
    }

    #[test]
    fn key_file_that_others_may_read_is_refused() {
        let path = std::env::temp_dir().join(format!("turnway-key-{}", std::process::id()));
        std::fs::write(&path, "twk_a_b\n").expect("written");
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
        mode(0o644);
        assert!(matches!(read_key_file(&path), Err(CliError::Usage(why)) if why.contains("chmod")));
        mode(0o640);
        assert_eq!(read_key_file(&path).ok().as_deref(), Some("twk_a_b"));
        std::fs::remove_file(&path).expect("removed");
        assert!(read_key_file(&path).is_err());
    }
}
