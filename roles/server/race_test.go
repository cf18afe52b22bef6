//go:build race

package server

// raced: the race detector lets pools forget, and so allocate.
const raced = true
