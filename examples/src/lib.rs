//! Examples live beside this file, one program each: see `examples/*.rs`.
