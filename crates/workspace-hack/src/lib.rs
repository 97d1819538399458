//! Holds no code: its dependencies unify the features of crates that several members share.
