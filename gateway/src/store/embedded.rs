//! The durable store on one machine: redb behind one group-commit writer thread.
