// Package domain holds the rules of worlds: what a world model card is. It knows neither the
// database nor the event substrate.
package domain
