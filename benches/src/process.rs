//! Reads memory and CPU time of a process, and data of the machine, from `/proc`.
use std::cell::Cell;
use std::fs;
use std::time::Duration;

/// A process, by its id.
#[derive(Clone, Copy, Debug)]
pub struct Process(u32);

/// CPU time of a process, including its threads that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// CPU time in user mode.
    pub user: Duration,
    /// CPU time in the kernel on behalf of the process.
    pub system: Duration,
}

/// A process under observation during a load.
#[derive(Debug)]
pub struct ProcessMonitor {
    pub process: Process,
    /// Resident memory in bytes before the first connection.
    pub rss_before: u64,
    rss_peak: Cell<u64>,
    cpu_from: Cell<Cpu>,
    cpu_to: Cell<Cpu>,
}

/// The machine on which figures were measured.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Number of cores that this process may use.
    pub cores: usize,
    /// Model name of the processor.
    pub cpu: String,
    /// Kernel release, as by `uname -r`.
    pub kernel: String,
    /// Total memory of the machine.
    pub memory_bytes: u64,
    /// Load average of the last minute.
    pub load_1m: f64,
}

// === impl Process ===

impl Process {
    /// Returns the process with this id, if it exists.
    pub fn find(pid: u32) -> Option<Self> {
        let process = Self(pid);
        process.cpu().map(|_| process)
    }

    /// Returns this process.
    pub fn own() -> Self {
        Self(std::process::id())
    }

    /// Returns the process id.
    pub fn pid(self) -> u32 {
        self.0
    }

    /// Returns the resident memory in bytes, or `None` if the process is gone.
    pub fn rss(self) -> Option<u64> {
        proc_field(&fs::read_to_string(format!("/proc/{}/status", self.0)).ok()?, "VmRSS:")
    }

    /// Returns the CPU time, or `None` if the process is gone. The kernel divides the exact sum in ticks of 10
    /// ms.
    pub fn cpu(self) -> Option<Cpu> {
        Cpu::read(&fs::read_to_string(format!("/proc/{}/stat", self.0)).ok()?)
    }
}

// === impl Cpu ===

impl Cpu {
    /// Parses `/proc/PID/stat`: fields 14 and 15, counted after the name, which may contain anything.
    fn read(stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
        let mut next = || {
            let ticks: u64 = fields.next()?.parse().ok()?;
            let per_second = rustix::param::clock_ticks_per_second().max(1);
            Some(Duration::from_nanos(ticks.saturating_mul(1_000_000_000) / per_second))
        };
        Some(Self { user: next()?, system: next()? })
    }

    /// Returns the CPU time used since an earlier reading.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self { user: self.user.saturating_sub(earlier.user), system: self.system.saturating_sub(earlier.system) }
    }

    /// Returns user and system time together.
    pub fn total(self) -> Duration {
        self.user + self.system
    }
}

// === impl ProcessMonitor ===

impl ProcessMonitor {
    /// Creates a watch and reads the process's memory.
    pub fn new(process: Process) -> Self {
        let rss = process.rss().unwrap_or(0);
        Self { process, rss_before: rss, rss_peak: Cell::new(rss), cpu_from: Cell::default(), cpu_to: Cell::default() }
    }

    /// Starts the measurement of CPU time.
    pub fn start_cpu(&self) {
        self.cpu_from.set(self.process.cpu().unwrap_or_default());
        self.sample();
    }

    /// Samples the process again. If the process is gone, the previous sample is kept.
    pub fn sample(&self) {
        self.rss_peak.set(self.rss_peak.get().max(self.process.rss().unwrap_or(0)));
        self.cpu_to.set(self.process.cpu().unwrap_or_else(|| self.cpu_to.get()));
    }

    /// Returns the peak of the sampled resident memory.
    pub fn rss_peak(&self) -> u64 {
        self.rss_peak.get()
    }

    /// Returns the CPU time since the load began.
    pub fn cpu(&self) -> Cpu {
        self.cpu_to.get().since(self.cpu_from.get())
    }
}

// === impl Machine ===

impl Machine {
    /// Returns data of this machine.
    pub fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpu = text("/proc/cpuinfo");
        let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: cpu.map_or_else(String::new, |(_, name)| name.trim().to_owned()),
            kernel: text("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory_bytes: proc_field(&text("/proc/meminfo"), "MemTotal:").unwrap_or(0),
            load_1m: text("/proc/loadavg").split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0),
        }
    }
}

/// Returns a field such as `Name:   123 kB` in bytes.
fn proc_field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = value.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0";
        let cpu = Cpu::read(stat).expect("a stat line");
        assert_eq!((cpu.user, cpu.system), (Duration::from_millis(2500), Duration::from_millis(500)));
        assert_eq!(Cpu::read("nonsense"), None);
    }

    #[test]
    fn this_process_is_there_and_uses_memory() {
        let own = Process::own();
        assert!(own.rss().is_some_and(|rss| rss > 100_000) && own.cpu().is_some());
        assert!(Process::find(own.pid()).is_some() && Process::find(u32::MAX).is_none());
        let machine = Machine::read();
        assert!(machine.cores > 0 && machine.memory_bytes > 0 && !machine.kernel.is_empty());
    }
}
