//! ZAC-1, a speech codec.
