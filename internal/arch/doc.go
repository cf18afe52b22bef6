// Package arch is the plan of this house as a test: every package has a row
// with its floor and what it may import, and a package or an import that is
// not planned fails. It has no code besides the test.
package arch
