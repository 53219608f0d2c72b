//! Worlds without IO in which the machines of Turnway are tested: a simulated fleet, the model of ownership, random
//! histories of stores, power cuts, and the laws of machines.
pub mod laws;
pub mod model;
pub mod power_cuts;
pub mod quiet_panics;
pub mod script;
pub mod sim;
