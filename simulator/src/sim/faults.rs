//! Fault rates of a simulated world.
use turnway_core::rng::Rng;

/// Percent for messages, operations and links; per ten thousand steps for node and store failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Peer messages lost.
    pub drop: u64,
    /// Peer messages duplicated.
    pub double: u64,
    /// Store replies lost after or before the operation took effect; the operation may take effect again, late.
    pub unknown: u64,
    /// Clients whose connection vanishes before they send again.
    pub hangup: u64,
    /// Links that read slowly or stall.
    pub lazy: u64,
    /// A node is paused for a while.
    pub pause: u64,
    /// A node crashes and another takes its place.
    pub crash: u64,
    /// A node cannot reach the store.
    pub cut: u64,
    /// Peer messages to a node are lost, and the bus reports that there is no receiver.
    pub deaf: u64,
    /// No node can reach the store.
    pub outage: u64,
    /// The store answers late.
    pub slow: u64,
    /// A node is drained.
    pub drain: u64,
    /// The store's clock jumps.
    pub clock: u64,
    /// The store loses its last writes.
    pub rewind: u64,
    /// Two nodes lose each other's messages without a report.
    pub split: u64,
    /// Every node is drained, one after the other.
    pub roll: u64,
    /// The store restarts: it keeps its data, but no leases.
    pub restart: u64,
    /// No fault: minimum number of facts kept per session; 0 keeps all.
    pub keep: u64,
    /// No fault: some turns have an agent that can resume after the loss of an owner.
    pub lasting: bool,
    /// No fault: members are added and removed.
    pub company: bool,
    /// No fault: users send steering messages.
    pub steering: bool,
    /// No fault: agents request handovers.
    pub handovers: bool,
    /// No fault: agents request actions of a tool runner.
    pub actions: bool,
    /// No fault: people write in rooms of a platform with adapters, and operators bind the rooms to sessions.
    pub channels: bool,
    /// No fault: agents give tasks to other agents in turns that came from rooms.
    pub tasks: bool,
    /// No fault: messages of rooms that one person writes in quick succession are gathered.
    pub debounce: bool,
    /// No fault: agents put buttons below answers to rooms, and people press them.
    pub buttons: bool,
    /// No fault: the sweep uses indexes that are written, lost and read apart from the sessions.
    pub indexed: bool,
}

impl Faults {
    /// High fault rates.
    pub const HIGH: Self = Self {
        drop: 15,
        double: 10,
        unknown: 8,
        hangup: 25,
        lazy: 15,
        pause: 12,
        crash: 10,
        cut: 10,
        deaf: 7,
        outage: 3,
        slow: 4,
        drain: 5,
        clock: 3,
        rewind: 0,
        split: 0,
        roll: 0,
        restart: 0,
        keep: 0,
        lasting: false,
        company: false,
        steering: false,
        handovers: false,
        actions: false,
        channels: false,
        tasks: false,
        debounce: false,
        buttons: false,
        indexed: false,
    };
    /// Highest fault rates.
    pub const EXTREME: Self = Self {
        drop: 50,
        double: 30,
        unknown: 25,
        hangup: 40,
        lazy: 30,
        pause: 40,
        crash: 25,
        cut: 30,
        deaf: 30,
        outage: 5,
        slow: 10,
        drain: 15,
        clock: 6,
        rewind: 0,
        split: 0,
        roll: 0,
        restart: 0,
        keep: 0,
        lasting: false,
        company: false,
        steering: false,
        handovers: false,
        actions: false,
        channels: false,
        tasks: false,
        debounce: false,
        buttons: false,
        indexed: false,
    };

    /// Adds a store that loses writes.
    pub fn with_lost_writes(self) -> Self {
        Self { rewind: self.rewind.max(15), ..self }
    }

    /// Adds trimming of old facts.
    pub fn with_trimming(self, keep: u64) -> Self {
        Self { keep, ..self }
    }

    /// Adds an agent that can resume after the loss of an owner.
    pub fn with_resumable_agent(self) -> Self {
        Self { lasting: true, ..self }
    }

    /// Adds member changes.
    pub fn with_member_changes(self) -> Self {
        Self { company: true, ..self }
    }

    /// Adds steering messages.
    pub fn steering(self) -> Self {
        Self { steering: true, ..self }
    }

    /// Adds handover requests of agents.
    pub fn handovers(self) -> Self {
        Self { handovers: true, ..self }
    }

    /// Adds action requests of agents.
    pub fn actions(self) -> Self {
        Self { actions: true, ..self }
    }

    /// Adds rooms of a platform with adapters.
    pub fn channels(self) -> Self {
        Self { channels: true, ..self }
    }

    /// Adds rooms whose agents give tasks to other agents.
    pub fn tasks(self) -> Self {
        Self { tasks: true, ..self.channels() }
    }

    /// Adds rooms whose messages are gathered.
    pub fn debounce(self) -> Self {
        Self { debounce: true, ..self.channels() }
    }

    /// Adds rooms whose answers have buttons.
    pub fn buttons(self) -> Self {
        Self { buttons: true, ..self.channels() }
    }

    /// Adds separate indexes for the sweep.
    pub fn indexed(self) -> Self {
        Self { indexed: true, ..self }
    }

    /// Returns a mix of faults for a seed: two faults that hide each other are separate in some world.
    pub fn swarm(seed: u64) -> Self {
        let mut rng = Rng::from_number(seed ^ 0x5eed_fa01);
        match seed % 10 {
            0 => return Self::HIGH,
            1 => return Self { rewind: 15, ..Self::HIGH },
            2 => return Self::EXTREME,
            3 => return Self { drop: 50, double: 10, unknown: 4, ..Self::default() },
            4 => return Self { hangup: 30, lazy: 60, ..Self::default() },
            _ => {}
        }
        let most = if rng.chance(30) { Self::EXTREME } else { Self::HIGH };
        let mut some = |most: u64| if rng.chance(55) { rng.below(most + 1) } else { 0 };
        Self {
            drop: some(most.drop),
            double: some(most.double),
            unknown: some(most.unknown),
            hangup: some(most.hangup),
            lazy: some(most.lazy),
            pause: some(most.pause),
            crash: some(most.crash),
            cut: some(most.cut),
            deaf: some(most.deaf),
            outage: some(most.outage),
            slow: some(most.slow),
            drain: some(most.drain),
            clock: some(most.clock),
            rewind: if seed.is_multiple_of(7) { 5 + some(35) } else { 0 },
            split: some(20),
            roll: some(3),
            restart: some(4),
            // Lost facts could not be distinguished from trimmed ones.
            keep: if seed.is_multiple_of(13) && !seed.is_multiple_of(7) {
                1 + Rng::from_number(seed).below(30)
            } else {
                0
            },
            lasting: false,
            company: false,
            steering: false,
            handovers: false,
            actions: false,
            channels: false,
            tasks: false,
            debounce: false,
            buttons: false,
            indexed: false,
        }
    }
}
