// Package domain holds the rules of platform: what a system card is and which version of it
// stands, and what becomes of an agent task. It knows neither the database nor the event substrate.
package domain
