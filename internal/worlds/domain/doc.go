// Package domain holds the rules of worlds: what a world model card is, what suggests a rule, and
// how decisions settle it. It knows neither the database nor the event substrate.
package domain
