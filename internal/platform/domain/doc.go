// Package domain holds the rules of platform: what a system card is and which version of it
// stands. It knows neither the database nor the event substrate.
package domain
