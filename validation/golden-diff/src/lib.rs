//! Compare a model's tensors with goldens made by another implementation, key by key.
