// Package domain holds the rules of worlds: what a world model card is, how a scan goes and what it
// finds, how decisions speak for the health of a rule, what suggests a rule, and how decisions settle it. It knows
// neither the database nor the event substrate.
package domain
