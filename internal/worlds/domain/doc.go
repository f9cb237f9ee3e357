// Package domain holds the rules of worlds: what a world model card is, and how decisions speak for
// the health of a rule. It knows neither the database nor the event substrate.
package domain
