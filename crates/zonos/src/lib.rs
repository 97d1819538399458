//! Facade of zonos-burn and the zonos command.
