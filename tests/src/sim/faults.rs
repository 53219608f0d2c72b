//! How cruel a world is.
use turnway_core::rng::Rng;

/// Percent for words, operations and links; per ten thousand steps for blows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Words lost.
    pub drop: u64,
    /// Words doubled.
    pub double: u64,
    /// Store replies lost after the op took effect, or before; it may take effect again, late.
    pub unknown: u64,
    /// Clients whose link vanishes before they speak again.
    pub hangup: u64,
    /// Links that read slowly or stall.
    pub lazy: u64,
    /// A node stops for a while.
    pub pause: u64,
    /// A node dies and another takes its place.
    pub crash: u64,
    /// A node cannot reach the store.
    pub cut: u64,
    /// Words to a node are lost, and the bus says that nobody is there.
    pub deaf: u64,
    /// Nobody can reach the store.
    pub outage: u64,
    /// The store answers late.
    pub slow: u64,
    /// A node is asked to leave.
    pub drain: u64,
    /// The store's clock jumps.
    pub clock: u64,
    /// The store forgets its last writes.
    pub rewind: u64,
    /// Two nodes do not hear each other, and nothing tells them so.
    pub split: u64,
    /// Every node is asked to leave, one after the other.
    pub roll: u64,
    /// The store starts again: it has what it was told, and no leases.
    pub restart: u64,
    /// No fault: how many facts of a session are kept at least; 0: all of them.
    pub keep: u64,
    /// Some turns are of an agent that outlives its owners: no fault, but a world of its own.
    pub lasting: bool,
    /// Members come and go: no fault either.
    pub company: bool,
    /// People fall into each other's words: no fault either.
    pub steering: bool,
    /// Agents ask that others answer: no fault either.
    pub handovers: bool,
    /// Agents have things done by a tool runner: no fault either.
    pub actions: bool,
    /// What is to be swept stands in indexes, which are written, lost and read apart from it: no fault either.
    pub indexed: bool,
}

impl Faults {
    /// What a bad day looks like.
    pub const CRUEL: Self = Self {
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
        indexed: false,
    };
    /// What the worst day looks like.
    pub const BRUTAL: Self = Self {
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
        indexed: false,
    };

    /// The same with a store that forgets.
    pub fn forgetful(self) -> Self {
        Self { rewind: self.rewind.max(15), ..self }
    }

    /// The same where what is old is forgotten on purpose.
    pub fn brief(self, keep: u64) -> Self {
        Self { keep, ..self }
    }

    /// The same with an agent that outlives its owners.
    pub fn lasting(self) -> Self {
        Self { lasting: true, ..self }
    }

    /// The same where members come and go.
    pub fn company(self) -> Self {
        Self { company: true, ..self }
    }

    /// The same where people fall into each other's words.
    pub fn steering(self) -> Self {
        Self { steering: true, ..self }
    }

    /// The same where agents ask that others answer.
    pub fn handovers(self) -> Self {
        Self { handovers: true, ..self }
    }

    /// The same where agents have things done.
    pub fn actions(self) -> Self {
        Self { actions: true, ..self }
    }

    /// The same where what is to be swept stands in indexes of its own.
    pub fn indexed(self) -> Self {
        Self { indexed: true, ..self }
    }

    /// A mix of its own for every seed: two faults that hide each other are apart in some world.
    pub fn swarm(seed: u64) -> Self {
        let mut rng = Rng::from_number(seed ^ 0x5eed_fa01);
        match seed % 10 {
            0 => return Self::CRUEL,
            1 => return Self { rewind: 15, ..Self::CRUEL },
            2 => return Self::BRUTAL,
            3 => return Self { drop: 50, double: 10, unknown: 4, ..Self::default() },
            4 => return Self { hangup: 30, lazy: 60, ..Self::default() },
            _ => {}
        }
        let most = if rng.chance(30) { Self::BRUTAL } else { Self::CRUEL };
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
            // What a store forgets by mistake could not be told from what it forgets on purpose.
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
            indexed: false,
        }
    }
}
